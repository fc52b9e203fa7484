//! Which commands of one connection may run at once.

/// What a request touches: two of one connection run at once only where these do not conflict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// No key.
    None,
    /// Reads the key of this hash. (Equal hashes of different keys only cost concurrency.)
    Read(u64),
    /// Writes the key of this hash.
    Write(u64),
    /// Reads any keys.
    ReadAny,
    /// Writes any keys.
    WriteAny,
}

impl Access {
    /// Whether the order of the two matters.
    pub fn conflicts(self, other: Access) -> bool {
        use Access::{None, Read, ReadAny, Write, WriteAny};
        match (self, other) {
            (None, _) | (_, None) => false,
            (Read(_) | ReadAny, Read(_) | ReadAny) => false,
            (WriteAny | ReadAny, _) | (_, WriteAny | ReadAny) => true,
            (Read(a) | Write(a), Read(b) | Write(b)) => a == b,
        }
    }

    /// Whether it changes anything.
    pub fn writes(self) -> bool {
        matches!(self, Access::Write(_) | Access::WriteAny)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_exactly_those_with_a_writer() {
        use Access::*;
        for (a, b, expected) in [
            (Read(1), Read(1), false),
            (Read(1), Write(1), true),
            (Write(1), Write(1), true),
            (Write(1), Write(2), false),
            (Read(1), Write(2), false),
            (ReadAny, Read(1), false),
            (ReadAny, Write(1), true),
            (WriteAny, Read(1), true),
            (ReadAny, WriteAny, true),
            (ReadAny, ReadAny, false),
            (None, WriteAny, false),
        ] {
            assert_eq!((a.conflicts(b), b.conflicts(a)), (expected, expected), "{a:?} {b:?}");
        }
    }
}
