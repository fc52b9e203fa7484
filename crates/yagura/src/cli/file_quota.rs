//! Flags of `yagura file quota`.

use std::ffi::OsString;
use std::str::FromStr;

use clap::{Args, Subcommand};

use super::{Common, PoolAddress};
use crate::size::Size;

/// `yagura file quota …`: what counts for a directory's quota is everything that was made below it. Another quota inside of it
/// counts for itself alone.
#[derive(Subcommand, Debug)]
pub enum FileQuotaVerb {
    /// Give a directory a quota, which must be empty then; or give one that has it other limits.
    Set(FileQuotaSetArgs),
    /// Show the quotas that paths count for.
    Show(FileQuotaArgs),
    /// Take the limits away. What counts is counted as before, and can be limited again.
    Clear(FileQuotaArgs),
}

/// `yagura file quota set`
#[derive(Args, Debug)]
pub struct FileQuotaSetArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// A directory.
    #[arg(value_name = "NAME:PATH")]
    pub path: OsString,
    /// Bytes of data that may be stored, without parity, in units of 4 KiB; `none`: any.
    #[arg(long, value_name = "SIZE", required_unless_present = "files")]
    pub bytes: Option<Limit<Size>>,
    /// Files, directories, and whatever else has an inode; `none`: any.
    #[arg(long, value_name = "COUNT")]
    pub files: Option<Limit<u64>>,
}

/// `yagura file quota show`, and `clear`
#[derive(Args, Debug)]
pub struct FileQuotaArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(flatten)]
    pub address: PoolAddress,
    /// Directories.
    #[arg(value_name = "NAME:PATH", required = true)]
    pub paths: Vec<OsString>,
}

/// A limit, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit<T>(pub Option<T>);

impl<T: FromStr> FromStr for Limit<T>
where
    T::Err: std::fmt::Display,
{
    type Err = String;

    fn from_str(text: &str) -> Result<Limit<T>, String> {
        match text {
            "none" => Ok(Limit(None)),
            _ => text.parse().map(|limit| Limit(Some(limit))).map_err(|error: T::Err| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!("10GiB".parse(), Ok(Limit(Some(Size(10 << 30)))));
        assert_eq!("1000".parse(), Ok(Limit(Some(1000u64))));
        assert_eq!("none".parse(), Ok(Limit::<u64>(None)));
        assert!("".parse::<Limit<u64>>().is_err() && "-1".parse::<Limit<Size>>().is_err());
    }
}
