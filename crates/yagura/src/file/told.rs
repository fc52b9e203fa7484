//! What is told of inodes, for people and programs.

use std::io::IsTerminal;

use ::file::Attributes;
use ::file::record::{Kind, Time};
use serde::Serialize;

use super::place::shown;

/// As programs are told it.
#[derive(Serialize)]
pub struct Told {
    /// The path as it was given, and what is below that; what is no text in it is replaced.
    pub path: String,
    /// The path's bytes, where it is no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    pub inode: u64,
    pub kind: &'static str,
    /// The twelve bits of permissions, in octal.
    pub mode: String,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Times in seconds since 1970.
    pub accessed: f64,
    pub modified: f64,
    pub changed: f64,
    pub created: f64,
    /// Where a symbolic link leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

fn seconds(time: Time) -> f64 {
    time.seconds as f64 + f64::from(time.nanos) / 1e9
}

impl Told {
    /// Of what is at this path.
    pub fn of(path: &[u8], told: &Attributes, target: Option<&[u8]>) -> Told {
        Told {
            path: String::from_utf8_lossy(path).into_owned(),
            path_bytes: str::from_utf8(path).is_err().then(|| path.to_vec()),
            inode: told.ino,
            kind: kind_name(told.kind),
            mode: format!("{:04o}", told.mode),
            links: told.links,
            uid: told.uid,
            gid: told.gid,
            size: told.size,
            accessed: seconds(told.accessed),
            modified: seconds(told.modified),
            changed: seconds(told.changed),
            created: seconds(told.created),
            target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }
}

/// What it is, in a word or two.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::Fifo => "pipe",
        Kind::Socket => "socket",
        Kind::Character => "character device",
        Kind::Block => "block device",
    }
}

/// Kind and permissions as `ls -l` writes them.
pub fn mode_text(kind: Kind, mode: u16) -> String {
    let mark = match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::Socket => 's',
        Kind::Character => 'c',
        Kind::Block => 'b',
    };
    let mut text = String::from(mark);
    for (shift, special, marks) in [(6, 0o4000, ['s', 'S']), (3, 0o2000, ['s', 'S']), (0, 0o1000, ['t', 'T'])] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => marks[0],
            (false, true) => marks[1],
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A moment by the calendar (UTC), to the second.
pub fn time_text(time: Time) -> String {
    let (days, second) = (time.seconds.div_euclid(86_400), time.seconds.rem_euclid(86_400));
    // Years that begin in March, in eras of 400 years: a leap day is a year's last one then.
    let shifted = i128::from(days) + 719_468;
    let (era, day) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (date, month) = (day_of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year_of_era + i128::from(month <= 2);
    format!("{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)
}

/// A name for whoever reads standard output: on a terminal nothing of it acts, elsewhere its bytes are what they are.
pub fn name_for_output(name: &[u8]) -> Vec<u8> {
    if std::io::stdout().is_terminal() { shown(name).into_bytes() } else { name.to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_modes_are_those_of_other_programs() {
        let at = |seconds| time_text(Time { seconds, nanos: 999_999_999 });
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(at(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(at(-1), "1969-12-31 23:59:59");
        assert_eq!(at(4_107_542_399), "2100-02-28 23:59:59");
        let all: Vec<String> = [i64::MAX, i64::MIN].into_iter().map(at).collect();
        assert!(all[0].starts_with("292277026596-12-04"), "{all:?}");
        let file = |mode| mode_text(Kind::File, mode);
        assert_eq!((file(0o644), file(0o4755)), ("-rw-r--r--".into(), "-rwsr-xr-x".into()));
        assert_eq!((file(0o6644), file(0o1001)), ("-rwSr-Sr--".into(), "---------t".into()));
        assert_eq!(mode_text(Kind::Directory, 0o1777), "drwxrwxrwt");
    }
}
