//! A command line as its tokens: what stands between spaces. As in memcached at most 23 are told apart.

/// Tokens that are told apart: memcached's `MAX_TOKENS` without the one that ends them.
pub const TOKENS_MAX: usize = 23;

/// The tokens of a line.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    tokens: [&'a [u8]; TOKENS_MAX],
    count: usize,
}

impl<'a> Tokens<'a> {
    /// Splits a line; what is behind the 23rd token is left out.
    pub fn split(line: &'a [u8]) -> Tokens<'a> {
        let mut tokens = Tokens { tokens: [&[]; TOKENS_MAX], count: 0 };
        for (place, token) in tokens.tokens.iter_mut().zip(words(line)) {
            *place = token;
            tokens.count += 1;
        }
        tokens
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The token at `index`; empty behind the last.
    pub fn get(&self, index: usize) -> &'a [u8] {
        self.tokens.get(index).copied().unwrap_or_default()
    }

    /// Those from `index` on.
    pub fn from(&self, index: usize) -> &[&'a [u8]] {
        &self.tokens[index.min(self.count)..self.count]
    }

    /// The last one says that nobody wants a reply.
    pub fn noreply(&self) -> bool {
        self.count > 0 && self.tokens[self.count - 1] == b"noreply"
    }
}

/// What stands between spaces.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ').filter(|word| !word.is_empty())
}

/// The next word at or behind `at`: where it stands, and it.
pub fn word_at(line: &[u8], at: usize) -> Option<(usize, &[u8])> {
    let start = at + line.get(at..)?.iter().position(|&byte| byte != b' ')?;
    let rest = &line[start..];
    let length = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
    Some((start, &rest[..length]))
}

/// The command of `input` up to its newline: the line without its end, as far as it is [`text`], and the bytes up to and with the
/// newline.
pub fn line(input: &[u8], newline: usize) -> (&[u8], usize) {
    let end = if newline > 1 && input[newline - 1] == b'\r' { newline - 1 } else { newline };
    (text(&input[..end]), newline + 1)
}

/// What is before a zero byte, which memcached takes for the end of its text.
pub fn text(bytes: &[u8]) -> &[u8] {
    if !bytes.contains(&0) {
        return bytes;
    }
    bytes.split(|&byte| byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_at_spaces_alone() {
        let tokens = Tokens::split(b"  set a\t1  noreply ");
        assert_eq!((tokens.len(), tokens.get(1), tokens.get(9)), (3, &b"a\t1"[..], &b""[..]));
        assert!(tokens.noreply() && !tokens.is_empty());
        assert_eq!(Tokens::split(&b"x ".repeat(40)).len(), TOKENS_MAX);
        assert_eq!(word_at(b"get  ab c", 3), Some((5, &b"ab"[..])));
        assert_eq!(word_at(b"get  ", 3), None);
        assert_eq!(word_at(b"get", 9), None);
    }

    #[test]
    fn a_line_ends_as_memcached_ends_it() {
        assert_eq!(line(b"get a\r\nrest", 6), (&b"get a"[..], 7));
        assert_eq!(line(b"get a\nrest", 5), (&b"get a"[..], 6));
        assert_eq!(line(b"\r\n", 1), (&b"\r"[..], 2));
        assert_eq!(line(b"a\0b\r\n", 4), (&b"a"[..], 5));
    }
}
