//! Block traces: the text of `blkparse`, and the logs of fio (`write_iolog`) in versions 2 and 3.
//!
//! | format | first line | when a command begins |
//! |---|---|---|
//! | blkparse | an event, which begins with its device (`8,0`) | when it was queued (action `Q`); other events are left out |
//! | fio's version 2 | `fio version 2 iolog` | when the one before has ended; `wait`: microseconds since the last wait |
//! | fio's version 3 | `fio version 3 iolog` | at the time in front of it, in microseconds |

use std::time::Duration;

/// What a command of a trace does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Deallocates.
    Trim,
    /// Makes stable what was written.
    Flush,
    /// Does nothing, for a time.
    Wait,
}

/// A command of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// When it begins, from the begin of the trace; `None`: when the one before has ended.
    pub at: Option<Duration>,
    /// What it does.
    pub kind: Kind,
    /// The first byte; of a wait its microseconds.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A line that is none of its format.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}: `{text}`")]
pub struct TraceError {
    /// Which line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
    /// Its begin.
    pub text: String,
}

/// Characters of a bad line that are shown. Chosen: a line of a terminal.
const SHOWN: usize = 80;
/// Bytes of a sector in blkparse's text, whatever the device has.
const BLKPARSE_SECTOR: u64 = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Blkparse,
    Iolog2,
    Iolog3,
}

type Parsed = Result<Option<Command>, &'static str>;

/// The commands of a trace.
///
/// # Errors
/// The first line that is none of the trace's format.
pub fn parse(text: &str) -> Result<Vec<Command>, TraceError> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line)).peekable();
    let format = match lines.peek().map(|&(_, line)| line.trim_end()) {
        Some("fio version 2 iolog") => Format::Iolog2,
        Some("fio version 3 iolog") => Format::Iolog3,
        _ => Format::Blkparse,
    };
    if format != Format::Blkparse {
        lines.next();
    }
    let (mut commands, mut last): (Vec<Command>, Duration) = (Vec::new(), Duration::ZERO);
    for (line, text) in lines {
        let fields: Vec<&str> = text.split_whitespace().collect();
        if fields.is_empty() {
            continue;
        }
        // The events are over where the summary of a processor, or of all, begins.
        if format == Format::Blkparse && !commands.is_empty() && (fields[0].starts_with("CPU") || fields[0] == "Total")
        {
            break;
        }
        let parsed = match format {
            Format::Blkparse => event(&fields),
            Format::Iolog2 => iolog(&fields, None),
            Format::Iolog3 => time_of(fields[0]).and_then(|at| iolog(&fields[1..], Some(at))),
        };
        let found =
            parsed.map_err(|what| TraceError { line, what, text: text.trim().chars().take(SHOWN).collect() })?;
        if let Some(mut command) = found {
            // Events of several processors may come in another order than they were in.
            last = command.at.map_or(last, |at| at.max(last));
            command.at = command.at.map(|_| last);
            commands.push(command);
        }
    }
    Ok(commands)
}

fn number(text: &str) -> Result<u64, &'static str> {
    text.parse().map_err(|_| "no whole number where there should be one")
}

fn time_of(text: &str) -> Result<Duration, &'static str> {
    number(text).map(Duration::from_micros).map_err(|_| "no time in microseconds in front")
}

/// What ends beyond all numbers is no range of any device.
fn range(offset: u64, length: u64) -> Result<(u64, u64), &'static str> {
    offset.checked_add(length).map(|_| (offset, length)).ok_or("a range that ends beyond 2^64 bytes")
}

/// `FILE ACTION [OFFSET LENGTH]`
fn iolog(fields: &[&str], at: Option<Duration>) -> Parsed {
    let (action, numbers) = match fields {
        [_, action] => (*action, None),
        [_, action, offset, length] => (*action, Some(range(number(offset)?, number(length)?)?)),
        _ => return Err("neither `file action` nor `file action offset length`"),
    };
    let command = |kind, (offset, length)| Ok(Some(Command { at, kind, offset, length }));
    match (action, numbers) {
        ("add" | "open" | "close", None) => Ok(None),
        ("read" | "write" | "trim", Some((_, 0))) => Err("a command without a length"),
        ("read", Some(range)) => command(Kind::Read, range),
        ("write", Some(range)) => command(Kind::Write, range),
        ("trim", Some(range)) => command(Kind::Trim, range),
        ("sync" | "datasync", _) => command(Kind::Flush, (0, 0)),
        ("wait", Some(range)) if at.is_none() => command(Kind::Wait, range),
        ("wait", _) => Err("a wait, which there is in version 2 alone, with a time"),
        ("read" | "write" | "trim", None) => Err("a command without offset and length"),
        _ => Err("an action that is not known"),
    }
}

/// `DEVICE CPU NUMBER SECONDS PID ACTION RWBS [SECTOR + COUNT] …`
fn event(fields: &[&str]) -> Parsed {
    let [device, cpu, sequence, time, _, action, rest @ ..] = fields else {
        return Err("no event: an event is `device cpu number time pid action …`");
    };
    let is_device = device.split_once(',').is_some_and(|(major, minor)| number(major).is_ok() && number(minor).is_ok());
    if !is_device {
        return Err("no event: it does not begin with a device as `8,0`");
    }
    number(cpu)?;
    number(sequence)?;
    let (seconds, nanos) = time.split_once('.').ok_or("no time as `0.000000000`")?;
    if nanos.len() != 9 {
        return Err("a time without nine digits behind the point");
    }
    let at = Some(Duration::new(number(seconds)?, number(nanos)? as u32));
    if *action != "Q" {
        return Ok(None);
    }
    let [flags, rest @ ..] = rest else { return Err("an event without the kind of its command") };
    // A flush in front of the command, then what it does, then how.
    let (is_flushed, flags) = flags.strip_prefix('F').map_or((false, *flags), |rest| (true, rest));
    let kind = match flags.chars().next() {
        Some('R') => Kind::Read,
        Some('W') => Kind::Write,
        Some('D') => Kind::Trim,
        _ if is_flushed => Kind::Flush,
        Some('N') => return Ok(None),
        _ => return Err("a kind of command that is not known"),
    };
    let sectors = match rest {
        [first, "+", count, ..] => (number(first)?, number(count)?),
        _ if is_flushed => (0, 0),
        _ => return Err("a command without `sector + count`"),
    };
    if kind == Kind::Flush || is_flushed && sectors.1 == 0 {
        return Ok(Some(Command { at, kind: Kind::Flush, offset: 0, length: 0 }));
    }
    if sectors.1 == 0 {
        return Err("a command without a length");
    }
    let bytes = |sectors: u64| sectors.checked_mul(BLKPARSE_SECTOR).ok_or("a range that ends beyond 2^64 bytes");
    let (offset, length) = range(bytes(sectors.0)?, bytes(sectors.1)?)?;
    Ok(Some(Command { at, kind, offset, length }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64, kind: Kind, offset: u64, length: u64) -> Command {
        Command { at: Some(Duration::from_micros(micros)), kind, offset, length }
    }

    #[test]
    fn events_of_blkparse_are_read() {
        let text = "  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000001000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000005000   697  Q  RA 64 + 16 [cat]
  8,0    1        4     0.000004000   697  Q  DS 8 + 8 [fstrim]
  8,0    1        5     0.000009000     0  Q FWS [fsync]
  8,0    1        6     0.000009000     0  m   N cfq697S / alloced
  8,0    1        7     0.000010000     0  C   W 223490 + 8 [0]

CPU0 (8,0):
 Reads Queued:           1,        8KiB  Writes Queued:           1,        4KiB
";
        let expected = vec![
            at(1, Kind::Write, 223_490 * 512, 4096),
            at(5, Kind::Read, 64 * 512, 8192),
            at(5, Kind::Trim, 4096, 4096),
            at(9, Kind::Flush, 0, 0),
        ];
        assert_eq!(parse(text), Ok(expected));
    }

    #[test]
    fn logs_of_fio_are_read() {
        let two = "fio version 2 iolog\n/dev/x add\n/dev/x open\n/dev/x write 4096 8192\n/dev/x wait 100 0\n/dev/x sync 0 0\n";
        let command = |kind, offset, length| Command { at: None, kind, offset, length };
        let expected = vec![command(Kind::Write, 4096, 8192), command(Kind::Wait, 100, 0), command(Kind::Flush, 0, 0)];
        assert_eq!(parse(two), Ok(expected));
        let three = "fio version 3 iolog\n0 x add\n3 x open\n7 x trim 0 4096\n9 x datasync 0 0\n12 x close\n";
        assert_eq!(parse(three), Ok(vec![at(7, Kind::Trim, 0, 4096), at(9, Kind::Flush, 0, 0)]));
    }

    #[test]
    fn a_bad_line_is_named() {
        for (text, line, what) in [
            ("8,0 0 1 0.000000001 1 Q W 8 + 8\nhello", 2, "no event"),
            ("8,0 0 1 0.1 1 Q W 8 + 8", 1, "nine digits"),
            ("8,0 0 1 0.000000001 1 Q W 8", 1, "sector + count"),
            ("8,0 0 1 0.000000001 1 Q W 8 + 0", 1, "without a length"),
            ("8,0 0 1 0.000000001 1 Q W 18446744073709551615 + 8", 1, "beyond 2^64"),
            ("8,0 0 1 0.000000001 1 Q X 8 + 8", 1, "kind of command"),
            ("CPU0 (8,0):", 1, "no event"),
            ("fio version 2 iolog\nx read 1", 2, "neither"),
            ("fio version 2 iolog\n\nx read 1 y", 3, "no whole number"),
            ("fio version 2 iolog\nx erase 1 2", 2, "not known"),
            ("fio version 2 iolog\nx write 0 0", 2, "without a length"),
            ("fio version 3 iolog\n1 x wait 1 2", 2, "version 2 alone"),
            ("fio version 3 iolog\nx read 1 2", 2, "no time"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.line == line && error.what.contains(what), "{text}: {error}");
        }
        assert_eq!(parse(""), Ok(Vec::new()));
    }
}
