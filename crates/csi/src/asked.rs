//! What requests have in common: words that have to be there, sizes, parts of lists.

use control::provision::{VOLUME_ALIGN, VOLUME_BYTES_MAX};
use tonic::Status;

use crate::plane::is_name;
use crate::wire::CapacityRange;

/// Bytes of a name or of an id, at most: the specification's.
pub const NAME_BYTES_MAX: usize = 128;
/// What a volume has of which no size is asked for. Chosen: what the examples of Kubernetes ask for.
const USUAL_BYTES: u64 = 1 << 30;
/// Entries of one answer, at most; more are behind a token. Chosen: a hundred kilobytes.
const ENTRIES_MAX: usize = 1000;
/// What a token of a list begins with: the names of what was listed last follow.
const AFTER: &str = "after:";

/// A word that has to be there, and is of a length that the specification allows.
pub fn required<'a>(what: &str, text: &'a str) -> Result<&'a str, Status> {
    match text.len() {
        0 => Err(Status::invalid_argument(format!("{what} is missing"))),
        1..=NAME_BYTES_MAX => Ok(text),
        long => Err(Status::invalid_argument(format!("{what} has {long} bytes: {NAME_BYTES_MAX} are allowed"))),
    }
}

/// So many entries are wanted at most.
pub fn most(max_entries: i32) -> Result<usize, Status> {
    match usize::try_from(max_entries) {
        Ok(0) => Ok(ENTRIES_MAX),
        Ok(most) => Ok(most.min(ENTRIES_MAX)),
        Err(_) => Err(Status::invalid_argument("max_entries is less than none")),
    }
}

/// What a token says: the names behind which the list goes on, as many as there are in each.
pub fn after<const N: usize>(token: &str) -> Result<Option<[String; N]>, Status> {
    let strange = || Status::aborted("the token is none of this driver's: begin anew without one");
    let Some(rest) = token.strip_prefix(AFTER) else {
        return if token.is_empty() { Ok(None) } else { Err(strange()) };
    };
    let names = rest.split('@').map(|name| is_name(name).then(|| name.to_owned()));
    let names: Vec<String> = names.collect::<Option<_>>().ok_or_else(strange)?;
    names.try_into().map(Some).map_err(|_| strange())
}

/// The token that says so; none: that was all.
pub fn token(names: Option<String>) -> String {
    names.map(|names| format!("{AFTER}{names}")).unwrap_or_default()
}

/// What size is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// Of an empty one that is made.
    pub bytes: u64,
    /// Of one that is there.
    pub least: u64,
    /// See `least`.
    pub most: u64,
}

impl Size {
    /// What the range allows.
    pub fn of(range: Option<CapacityRange>) -> Result<Size, Status> {
        let CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
        let (Ok(least), Ok(limit)) = (u64::try_from(required_bytes), u64::try_from(limit_bytes)) else {
            return Err(Status::invalid_argument("capacity_range: a size is less than none"));
        };
        if limit > 0 && limit < least {
            return Err(Status::invalid_argument("capacity_range: less is allowed than is wanted"));
        }
        let most = if limit == 0 { VOLUME_BYTES_MAX } else { limit.min(VOLUME_BYTES_MAX) };
        let wanted = if least == 0 { USUAL_BYTES.min(most) } else { least };
        let rounded = if least == 0 { wanted - wanted % VOLUME_ALIGN } else { wanted.next_multiple_of(VOLUME_ALIGN) };
        if rounded == 0 || rounded > most {
            let allowed = format!("a multiple of {VOLUME_ALIGN}, {VOLUME_BYTES_MAX} at most");
            return Err(Status::out_of_range(format!("capacity_range: no volume has such a size: it is {allowed}")));
        }
        Ok(Size { bytes: rounded, least, most: if limit == 0 { u64::MAX } else { limit } })
    }

    /// Whether a volume of that size is what is wanted.
    pub fn allows(&self, bytes: u64) -> bool {
        (self.least..=self.most).contains(&bytes)
    }

    /// Of one that begins as something of that size, and does not become smaller than that.
    pub fn of_copy(&self, source: u64) -> Result<u64, Status> {
        let bytes = if self.least == 0 { source } else { self.bytes.max(source) };
        if bytes > self.most {
            let why = format!("capacity_range: {} bytes are allowed, and what it begins as has {source}", self.most);
            return Err(Status::out_of_range(why));
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn size(required_bytes: i64, limit_bytes: i64) -> Result<Size, Code> {
        Size::of(Some(CapacityRange { required_bytes, limit_bytes })).map_err(|status| status.code())
    }

    #[test]
    fn sizes_are_rounded_to_what_a_volume_can_have() {
        let (block, most) = (VOLUME_ALIGN as i64, VOLUME_BYTES_MAX as i64);
        let made = |required, limit| size(required, limit).map(|size| size.bytes as i64);
        assert_eq!(made(0, 0), Ok(USUAL_BYTES as i64));
        assert_eq!(Size::of(None).map(|size| size.bytes).map_err(|status| status.code()), Ok(USUAL_BYTES));
        assert_eq!(made(1, 0), Ok(block));
        assert_eq!(made(block + 1, 3 * block), Ok(2 * block));
        assert_eq!(made(0, 3 * block + 1), Ok(3 * block));
        assert_eq!(made(most, 0), Ok(most));
        for (required, limit, code) in [
            (-1, 0, Code::InvalidArgument),
            (0, -1, Code::InvalidArgument),
            (2, 1, Code::InvalidArgument),
            (block + 1, 2 * block - 1, Code::OutOfRange),
            (0, block - 1, Code::OutOfRange),
            (most + 1, 0, Code::OutOfRange),
            (i64::MAX, 0, Code::OutOfRange),
        ] {
            assert_eq!(made(required, limit), Err(code), "{required} {limit}");
        }
    }

    #[test]
    fn a_copy_is_no_smaller_than_what_it_is_made_of() {
        let made = |required, limit, source| {
            size(required, limit).and_then(|size| size.of_copy(source).map_err(|status| status.code()))
        };
        assert_eq!(made(0, 0, 8192), Ok(8192));
        assert_eq!(made(4096, 0, 8192), Ok(8192));
        assert_eq!(made(8193, 0, 8192), Ok(12288));
        assert_eq!(made(0, 8192, 8192), Ok(8192));
        assert_eq!(made(4096, 8191, 8192), Err(Code::OutOfRange));
    }

    #[test]
    fn words_that_have_to_be_there_are_asked_for() {
        let code = |text: &str| required("name", text).map(str::len).map_err(|status| status.code());
        assert_eq!(code(""), Err(Code::InvalidArgument));
        assert_eq!(code(&"a".repeat(128)), Ok(128));
        assert_eq!(code(&"a".repeat(129)), Err(Code::InvalidArgument));
    }

    #[test]
    fn a_token_says_as_many_names_as_it_was_made_with() {
        let code = |status: Status| status.code();
        assert_eq!(after::<2>(&token(Some("a@b".into()))).map_err(code), Ok(Some(["a".into(), "b".into()])));
        assert_eq!(after::<1>(&token(None)).map_err(code), Ok(None));
        for wrong in ["a", "after:", "after:a", "after:a@", "after:@a@b", "after:a@B", "after:a@b@c"] {
            assert_eq!(after::<2>(wrong).map_err(code), Err(Code::Aborted), "{wrong}");
        }
        for (entries, expected) in [(0, Ok(1000)), (7, Ok(7)), (i32::MAX, Ok(1000)), (-1, Err(Code::InvalidArgument))] {
            assert_eq!(most(entries).map_err(code), expected, "{entries}");
        }
    }
}
