//! Recycled buffers.

/// Buffers that were used before and may be used again.
///
/// Touching a fresh page costs more than the arithmetic on it, and a pass needs dozens of
/// large buffers, so they are kept between passes.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    free: Vec<Vec<f32>>,
}

impl Scratch {
    /// A buffer of `len` numbers with unspecified contents.
    pub(crate) fn take(&mut self, len: usize) -> Vec<f32> {
        let fits = self
            .free
            .iter()
            .enumerate()
            .filter(|(_, buffer)| buffer.capacity() >= len);
        let best = fits
            .min_by_key(|(_, buffer)| buffer.capacity())
            .map(|(index, _)| index);
        let mut buffer = best
            .map(|index| self.free.swap_remove(index))
            .unwrap_or_default();
        buffer.resize(len, 0.0);
        buffer
    }

    /// A buffer of `len` zeros.
    pub(crate) fn zeros(&mut self, len: usize) -> Vec<f32> {
        let mut buffer = self.take(len);
        buffer.fill(0.0);
        buffer
    }

    /// A copy of some numbers.
    pub(crate) fn copy(&mut self, numbers: &[f32]) -> Vec<f32> {
        let mut buffer = self.take(numbers.len());
        buffer.copy_from_slice(numbers);
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Vec<f32>) {
        self.free.push(buffer);
    }

    /// Size of all buffers held.
    pub(crate) fn bytes(&self) -> usize {
        self.free.iter().map(|buffer| buffer.capacity() * 4).sum()
    }
}
