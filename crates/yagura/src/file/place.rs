//! [`Place`]: what an argument means: a path in a file system, one of this machine, or a standard stream.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::exit::Failure;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// `NAME:PATH`: there is a `:` before the first `/`.
    Inside(Inside),
    /// Any other path.
    Local(PathBuf),
    /// `-`.
    Standard,
}

/// A path in a file system. Its bytes need not be text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inside {
    /// Which file system.
    pub name: String,
    /// From its root on, with or without a `/` before it.
    pub path: Vec<u8>,
}

impl Place {
    /// What an argument means.
    pub fn parse(text: &OsStr) -> Result<Place, Failure> {
        let bytes = text.as_bytes();
        if bytes == b"-" {
            return Ok(Place::Standard);
        }
        if bytes.is_empty() {
            return Err(Failure::usage("an empty path leads nowhere"));
        }
        match bytes.iter().position(|byte| matches!(byte, b':' | b'/')) {
            Some(at) if bytes[at] == b':' => {
                let name = str::from_utf8(&bytes[..at]).map_err(|_| {
                    let text = bytes.escape_ascii();
                    Failure::usage(format!(
                        "{text}: no file system has such a name; ./{text} is a path of this machine"
                    ))
                })?;
                Ok(Place::Inside(Inside { name: name.to_owned(), path: bytes[at + 1..].to_vec() }))
            }
            _ => Ok(Place::Local(PathBuf::from(text))),
        }
    }
}

impl Place {
    /// The name that its end is; empty where that is none (`.`, `..`, a root, a stream).
    pub fn last_name(&self) -> &[u8] {
        match self {
            Place::Inside(inside) => last_name(&inside.path),
            Place::Local(path) => last_name(path.as_os_str().as_bytes()),
            Place::Standard => b"",
        }
    }
}

impl Inside {
    /// What an argument means that must be a path in a file system.
    pub fn parse(text: &OsStr) -> Result<Inside, Failure> {
        match Place::parse(text)? {
            Place::Inside(inside) => Ok(inside),
            _ => Err(Failure::usage(format!(
                "{}: which file system? write NAME:PATH, and NAME: for its root",
                text.as_bytes().escape_ascii()
            ))),
        }
    }

    /// All of them.
    pub fn parse_all(texts: &[OsString]) -> Result<Vec<Inside>, Failure> {
        texts.iter().map(|text| Inside::parse(text)).collect()
    }

    /// A path below it.
    pub fn below(&self, path: &[u8]) -> Inside {
        let (name, mut whole) = (self.name.clone(), self.path.clone());
        if !path.is_empty() {
            if !whole.is_empty() && !whole.ends_with(b"/") {
                whole.push(b'/');
            }
            whole.extend(path);
        }
        Inside { name, path: whole }
    }
}

/// The last name of a path; empty where that is none.
pub fn last_name(path: &[u8]) -> &[u8] {
    let last = path.rsplit(|byte| *byte == b'/').find(|name| !name.is_empty()).unwrap_or_default();
    if matches!(last, b"." | b"..") { b"" } else { last }
}

/// Bytes of a name or path for people.
pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes)
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] })
        .collect()
}

impl fmt::Display for Inside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, shown(&self.path))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Inside(inside) => inside.fmt(f),
            Place::Local(path) => f.write_str(&shown(path.as_os_str().as_bytes())),
            Place::Standard => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_before_the_first_slash_names_a_file_system() {
        let place = |text: &str| Place::parse(OsStr::new(text)).expect("understood");
        let inside = |name: &str, path: &str| Place::Inside(Inside { name: name.into(), path: path.into() });
        assert_eq!(place("tree:"), inside("tree", ""));
        assert_eq!(place("tree:/a:b/c"), inside("tree", "/a:b/c"));
        assert_eq!(place("-"), Place::Standard);
        for local in ["a", "./a:b", "/a:b", "a/b:c", "./-"] {
            assert_eq!(place(local), Place::Local(local.into()), "{local}");
        }
        let foreign = OsStr::from_bytes(b"tree:\xff\xfe");
        assert_eq!(
            Place::parse(foreign).expect("bytes"),
            Place::Inside(Inside { name: "tree".into(), path: vec![0xff, 0xfe] })
        );
        assert!(Place::parse(OsStr::from_bytes(b"\xff:a")).is_err() && Place::parse(OsStr::new("")).is_err());
        assert!(Inside::parse(OsStr::new("a")).is_err_and(|failure| failure.sentence().contains("NAME:PATH")));
    }

    #[test]
    fn paths_have_last_names_and_go_on_below() {
        for (path, name) in [("a", "a"), ("/a/b/", "b"), ("", ""), ("/", ""), ("a/..", ""), (".", ""), ("a/./", "")] {
            assert_eq!(last_name(path.as_bytes()), name.as_bytes(), "{path}");
        }
        let at = |path: &str| Inside { name: "t".into(), path: path.into() };
        assert_eq!(at("a").below(b"b/c").to_string(), "t:a/b/c");
        assert_eq!((at("").below(b"b").to_string(), at("/").below(b"b").to_string()), ("t:b".into(), "t:/b".into()));
        assert_eq!(at("a\nb").to_string(), "t:a\\nb");
    }
}
