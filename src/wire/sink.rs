//! Writing protobuf straight from the values, each array copied once.
//!
//! Length-delimited messages need their size before their content. A [`Body`] describes its
//! fields once and runs against either sink: [`Count`] adds up sizes without touching any array,
//! `Vec<u8>` takes the bytes. So sizes cannot drift from content, and no message is built in
//! between.

use super::le::{self, Number};

/// The fields of one message, in the order they are written.
pub(super) trait Body {
    fn write(&self, sink: &mut impl Sink);

    /// How many bytes the fields take.
    fn size(&self) -> usize {
        let mut count = Count(0);
        self.write(&mut count);
        count.0
    }
}

/// Where encoded bytes go.
///
/// Methods named after a type write a field that is left out at its default, as proto3 does; those
/// with `present` in their name write it always.
pub(super) trait Sink: Sized {
    fn raw(&mut self, bytes: &[u8]);

    fn array<T: Number>(&mut self, values: &[T]);

    fn message(&mut self, number: u32, body: &impl Body);

    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; 10];
        let mut end = 0;
        while value >= 0x80 {
            bytes[end] = value as u8 | 0x80;
            value >>= 7;
            end += 1;
        }
        bytes[end] = value as u8;
        self.raw(&bytes[..=end]);
    }

    /// The start of a field of `length` bytes, which the caller writes next.
    fn prefix(&mut self, number: u32, length: usize) {
        self.varint(u64::from(number << 3 | 2));
        self.varint(length as u64);
    }

    fn present_integer(&mut self, number: u32, value: i64) {
        self.varint(u64::from(number << 3));
        // Negative numbers take all ten bytes, whatever the declared width.
        self.varint(value as u64);
    }

    fn integer(&mut self, number: u32, value: i64) {
        if value != 0 {
            self.present_integer(number, value);
        }
    }

    fn present_double(&mut self, number: u32, value: f64) {
        self.varint(u64::from(number << 3 | 1));
        self.raw(&value.to_le_bytes());
    }

    fn present_bytes(&mut self, number: u32, value: &[u8]) {
        self.prefix(number, value.len());
        self.raw(value);
    }

    fn bytes(&mut self, number: u32, value: &[u8]) {
        if !value.is_empty() {
            self.present_bytes(number, value);
        }
    }

    fn present_numbers<T: Number>(&mut self, number: u32, values: &[T]) {
        self.prefix(number, size_of_val(values));
        self.array(values);
    }

    fn numbers<T: Number>(&mut self, number: u32, values: &[T]) {
        if !values.is_empty() {
            self.present_numbers(number, values);
        }
    }

    /// A packed list of sizes.
    fn sizes(&mut self, number: u32, values: &[usize]) {
        if !values.is_empty() {
            self.message(number, &Packed(values));
        }
    }
}

/// Adds up how many bytes would be written.
struct Count(usize);

impl Sink for Count {
    fn raw(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }

    fn array<T: Number>(&mut self, values: &[T]) {
        self.0 += size_of_val(values);
    }

    fn message(&mut self, number: u32, body: &impl Body) {
        let size = body.size();
        self.prefix(number, size);
        self.0 += size;
    }
}

impl Sink for Vec<u8> {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn array<T: Number>(&mut self, values: &[T]) {
        le::extend(self, values);
    }

    fn message(&mut self, number: u32, body: &impl Body) {
        self.prefix(number, body.size());
        body.write(self);
    }
}

struct Packed<'a>(&'a [usize]);

impl Body for Packed<'_> {
    fn write(&self, sink: &mut impl Sink) {
        for &value in self.0 {
            sink.varint(value as u64);
        }
    }
}

/// One entry of a map whose values are messages.
pub(super) struct Entry<'a, B> {
    pub(super) key: &'a str,
    pub(super) value: B,
}

impl<B: Body> Body for Entry<'_, B> {
    fn write(&self, sink: &mut impl Sink) {
        sink.present_bytes(1, self.key.as_bytes());
        sink.message(2, &self.value);
    }
}

/// One entry of a map from strings to doubles.
pub(super) struct DoubleEntry<'a> {
    pub(super) key: &'a str,
    pub(super) value: f64,
}

impl Body for DoubleEntry<'_> {
    fn write(&self, sink: &mut impl Sink) {
        sink.present_bytes(1, self.key.as_bytes());
        sink.present_double(2, self.value);
    }
}

/// Replaces what `out` held by the encoded message, with at most one allocation.
pub(super) fn encode(body: &impl Body, out: &mut Vec<u8>) {
    out.clear();
    out.reserve(body.size());
    body.write(out);
}
