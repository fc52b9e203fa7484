//! Base64 of binary keys, as memcached has it: bytes outside the alphabet are passed over, and what is decoded has whole blocks.

use crate::KEY_BYTES_MAX;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The six bits of a byte; of `=` they are 0.
fn bits_of(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        b'=' => Some(0),
        _ => None,
    }
}

/// A key that was decoded: three quarters of one that may be sent are always room enough.
#[derive(Clone, Copy, Debug)]
pub struct DecodedKey {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl DecodedKey {
    /// Decodes a token of at most [`KEY_BYTES_MAX`] bytes; `None` if it is no base64.
    pub fn decode(token: &[u8]) -> Option<DecodedKey> {
        let count = token.iter().filter(|&&byte| bits_of(byte).is_some()).count();
        if count == 0 || count % 4 != 0 || token.len() > KEY_BYTES_MAX {
            return None;
        }
        let mut key = DecodedKey { bytes: [0; KEY_BYTES_MAX], len: 0 };
        let (mut block, mut filled, mut padding) = (0u32, 0, 0);
        for &byte in token {
            let Some(bits) = bits_of(byte) else { continue };
            padding += usize::from(byte == b'=');
            block = block << 6 | u32::from(bits);
            filled += 1;
            if filled < 4 {
                continue;
            }
            key.bytes[key.len..key.len + 3].copy_from_slice(&block.to_be_bytes()[1..]);
            key.len += 3;
            (block, filled) = (0, 0);
            match padding {
                0 => {}
                1 | 2 => {
                    key.len -= padding;
                    break;
                }
                _ => return None,
            }
        }
        Some(key)
    }

    /// The key.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Appends `bytes` in base64.
pub fn encode(text: &mut Vec<u8>, bytes: &[u8]) {
    for block in bytes.chunks(3) {
        let mut padded = [0; 4];
        padded[1..1 + block.len()].copy_from_slice(block);
        let bits = u32::from_be_bytes(padded);
        for at in 0..4 {
            let digit = ALPHABET[(bits >> (18 - 6 * at)) as usize & 63];
            text.push(if at > block.len() { b'=' } else { digit });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(token: &[u8]) -> Option<Vec<u8>> {
        DecodedKey::decode(token).map(|key| key.bytes().to_vec())
    }

    #[test]
    fn decodes_what_memcached_does() {
        assert_eq!(decoded(b"Zm9v").as_deref(), Some(&b"foo"[..]));
        assert_eq!(decoded(b"Z*m9-v").as_deref(), Some(&b"foo"[..]));
        assert_eq!(decoded(b"Zg==").as_deref(), Some(&b"f"[..]));
        assert_eq!(decoded(b"Zg==Zm9v").as_deref(), Some(&b"f"[..]));
        assert_eq!(decoded(b"Zm9=").as_deref(), Some(&b"fo"[..]));
        assert_eq!(decoded(b"Zm9"), None);
        assert_eq!(decoded(b"Z==="), None);
        assert_eq!(decoded(b"***"), None);
        assert_eq!(decoded(&[b'A'; KEY_BYTES_MAX + 2]), None);
    }

    #[test]
    fn what_is_encoded_decodes() {
        for length in 1..180 {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 37 + 11) as u8).collect();
            let mut text = Vec::new();
            encode(&mut text, &bytes);
            assert_eq!(decoded(&text).as_deref(), Some(&bytes[..]));
        }
    }
}
