//! Just enough protobuf to look into a recorded `forward_backward`.

/// The last value of a numeric field of the outermost message; 0, as always, if it is absent.
pub(crate) fn number(body: &[u8], field: u64) -> u64 {
    let (mut rest, mut found) = (body, 0);
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        let value = match tag & 7 {
            0 => varint(&mut rest),
            1 => skip(&mut rest, 8),
            2 => {
                let length = varint(&mut rest);
                skip(&mut rest, length as usize)
            }
            _ => skip(&mut rest, 4),
        };
        if tag >> 3 == field {
            found = value;
        }
    }
    found
}

/// The text of the first field of this number of the outermost message.
pub(crate) fn text(body: &[u8], field: u64) -> String {
    let mut rest = body;
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        match tag & 7 {
            0 => drop(varint(&mut rest)),
            1 => drop(skip(&mut rest, 8)),
            2 => {
                let length = varint(&mut rest) as usize;
                if tag >> 3 == field {
                    return String::from_utf8_lossy(&rest[..length]).into_owned();
                }
                skip(&mut rest, length);
            }
            _ => drop(skip(&mut rest, 4)),
        }
    }
    String::new()
}

/// The request's number.
pub(crate) fn seq_id(body: &[u8]) -> u64 {
    number(body, 2)
}

/// Whether it asks for a pass that changes nothing.
pub(crate) fn is_forward_only(body: &[u8]) -> bool {
    number(body, 6) == 1
}

fn skip(rest: &mut &[u8], count: usize) -> u64 {
    *rest = &rest[count..];
    0
}

fn varint(rest: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = rest[0];
        *rest = &rest[1..];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            break;
        }
    }
    value
}
