//! The front of a GGUF file, to be written.

use super::Value;

/// Where the numbers of a tensor may begin.
pub(crate) const ALIGNMENT: u64 = 32;

/// What stands before the numbers: values, then the table of tensors.
#[derive(Debug, Default)]
pub(crate) struct Header {
    values: Vec<u8>,
    value_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
    /// Bytes of the tensors so far.
    data: u64,
}

impl Header {
    /// Adds a named value. Whole numbers have 32 bits, as llama.cpp expects most of its own.
    pub(crate) fn put(&mut self, name: &str, value: &Value) {
        let out = &mut self.values;
        text(out, name);
        match value {
            Value::Uint(number) => match u32::try_from(*number) {
                Ok(number) => typed(out, 4, &number.to_le_bytes()),
                Err(_) => typed(out, 10, &number.to_le_bytes()),
            },
            Value::Int(number) => match i32::try_from(*number) {
                Ok(number) => typed(out, 5, &number.to_le_bytes()),
                Err(_) => typed(out, 11, &number.to_le_bytes()),
            },
            Value::Float(number) => typed(out, 6, &(*number as f32).to_le_bytes()),
            Value::Bool(flag) => typed(out, 7, &[u8::from(*flag)]),
            Value::Text(content) => {
                typed(out, 8, &[]);
                text(out, content);
            }
            Value::Texts(texts) => {
                list(out, 8, texts.len());
                texts.iter().for_each(|content| text(out, content));
            }
            // Scores are numbers of any kind; what else there is are kinds and ids.
            Value::Numbers(numbers) if name.ends_with(".scores") => {
                list(out, 6, numbers.len());
                out.extend(numbers.iter().flat_map(|x| (*x as f32).to_le_bytes()));
            }
            Value::Numbers(numbers) => {
                list(out, 5, numbers.len());
                out.extend(numbers.iter().flat_map(|x| (*x as i32).to_le_bytes()));
            }
            Value::Nested => list(out, 8, 0),
        }
        self.value_count += 1;
    }

    /// Adds a tensor of ggml's type `kind`; its numbers follow those of the one before, padded to
    /// the [alignment](ALIGNMENT). The slowest-running dimension comes first here.
    pub(crate) fn tensor(&mut self, name: &str, shape: &[usize], kind: u32, bytes: usize) {
        let out = &mut self.tensors;
        text(out, name);
        out.extend((shape.len() as u32).to_le_bytes());
        for size in shape.iter().rev() {
            out.extend((*size as u64).to_le_bytes());
        }
        out.extend(kind.to_le_bytes());
        out.extend(self.data.to_le_bytes());
        self.data += (bytes as u64).next_multiple_of(ALIGNMENT);
        self.tensor_count += 1;
    }

    /// Bytes of all tensors with their padding.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.data
    }

    /// The bytes, up to where the numbers begin.
    pub(crate) fn finish(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.value_count.to_le_bytes());
        out.extend(self.values);
        out.extend(self.tensors);
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        out
    }
}

fn text(out: &mut Vec<u8>, content: &str) {
    out.extend((content.len() as u64).to_le_bytes());
    out.extend(content.as_bytes());
}

fn typed(out: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    out.extend(kind.to_le_bytes());
    out.extend(bytes);
}

fn list(out: &mut Vec<u8>, kind: u32, len: usize) {
    typed(out, 9, &kind.to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::Gguf;
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let values = [
            ("a", Value::Uint(7)),
            ("b", Value::Uint(1 << 40)),
            ("c", Value::Int(-3)),
            ("d", Value::Float(0.5)),
            ("e", Value::Bool(true)),
            ("f", Value::Text("grüße".into())),
            ("g", Value::Texts(vec!["x".into(), String::new()])),
            ("h.scores", Value::Numbers(vec![-1.0, 2.5])),
            ("i", Value::Numbers(vec![3.0, -4.0])),
            ("j", Value::Texts(Vec::new())),
        ];
        let mut header = Header::default();
        for (name, value) in &values {
            header.put(name, value);
        }
        header.tensor("one", &[2, 3], 0, 24);
        header.tensor("two", &[5], 1, 10);
        assert_eq!(header.data_bytes(), 64);
        let bytes = header.finish();
        let file = Gguf::read(&bytes[..]).unwrap();
        for (name, value) in &values {
            assert_eq!(file.get(name), Some(value), "{name}");
        }
        assert_eq!(file.data_start(), bytes.len() as u64);
        let [one, two] = file.tensors() else {
            panic!("two tensors")
        };
        assert_eq!((&one.dimensions[..], one.offset), (&[3, 2][..], 0));
        assert_eq!((&two.dimensions[..], two.offset), (&[5][..], 32));
    }
}
