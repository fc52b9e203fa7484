//! Changes of one record that are made once, whatever becomes of the answers.
//!
//! ```text
//!  0  format  u8 = 1
//!  1  recent  u8, then as many u64: the numbers of the last changes, the newest last
//!     body    the record's own
//! ```
//! Each change has a number, drawn for it, which goes into the record with it. Whoever did not learn what became of a change reads
//! again:
//! - the version is the one that the change expected: it has not taken effect, and is sent again as it was; one of the two takes
//!   effect then, and it is no matter which;
//! - the number is there: it has taken effect;
//! - the number is not there, and one that was there before it is: it has not, and never will, since a version does not return;
//! - else nobody knows. So it is with all that is found absent, or was: absence has no version, and returns. What was put where
//!   nothing was may have been taken out again by another, and what is gone another may have removed.
//!
//! What nobody knows of is not tried again by [`change`]: rows that nobody uses are found by `fsck`, rows that are used twice by
//! nobody. [`ensure`] tries it again, where that does no harm.

use std::time::Duration;

use engine::backoff::{Backoff, jittered};
use engine::task::LocalFuture;
use engine::{task, time};

use crate::bytes::Reader;
use crate::error::Error;
use crate::meta::{Meta, Seen, Swapped, Version};

const FORMAT: u8 = 1;
/// Numbers of changes that a record keeps. Chosen: 64 bytes; more clients do not meet in one record while one waits for an answer.
const RECENT_MAX: usize = 8;
/// Tries of one change. Chosen: each that fails is another's success, with pauses in between; minutes of contention.
const TRIES_MAX: usize = 200;
/// Pauses between tries.
const PAUSE_FIRST: Duration = Duration::from_micros(200);
const PAUSE_LAST: Duration = Duration::from_millis(200);

/// Why a change was not made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// It may have been made, or may yet be.
    pub(crate) may_be_done: bool,
    /// So it may; but the record can be read, and whatever is done next is done after it.
    pub(crate) is_past: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed { error, may_be_done: false, is_past: false }
    }
}

/// What a change makes of a record; the body, and what is to be told of it.
pub(crate) enum Next<T> {
    /// It becomes this.
    Put(Vec<u8>, T),
    /// It goes.
    Remove(T),
    /// It stays.
    Keep(T),
}

impl<T> Next<T> {
    fn map<U>(self, map: impl FnOnce(T) -> U) -> Next<U> {
        match self {
            Next::Put(body, outcome) => Next::Put(body, map(outcome)),
            Next::Remove(outcome) => Next::Remove(map(outcome)),
            Next::Keep(outcome) => Next::Keep(map(outcome)),
        }
    }
}

/// A record as it stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stands {
    pub(crate) body: Vec<u8>,
    pub(crate) version: Version,
    recent: Vec<u64>,
}

fn parse(seen: Seen) -> Result<Stands, Error> {
    let mut reader = Reader::new("a record of a file system", &seen.value);
    let format = reader.u8()?;
    reader.check(format == FORMAT, "it is of another format: use the version that wrote it")?;
    let count = usize::from(reader.u8()?);
    reader.check(count <= RECENT_MAX, "too many numbers of changes")?;
    let recent = (0..count).map(|_| reader.u64()).collect::<Result<_, _>>()?;
    let body = reader.raw(reader.rest())?.to_vec();
    Ok(Stands { body, version: seen.version, recent })
}

/// Reads a record.
pub(crate) async fn load(meta: &dyn Meta, key: &[u8]) -> Result<Option<Stands>, Error> {
    meta.get(key).await?.map(parse).transpose()
}

/// A change that was sent.
struct Attempt {
    number: u64,
    before: Option<(Version, Vec<u64>)>,
    new: Option<Vec<u8>>,
    /// No answer came, once at least: it may have been made, or may yet be.
    is_in_doubt: bool,
}

enum Verdict {
    Made,
    /// Not yet, and nothing else either.
    Open,
    Never,
    Unknown,
}

impl Attempt {
    fn version(&self) -> Option<Version> {
        self.before.as_ref().map(|(version, _)| *version)
    }

    fn judge(&self, now: Option<&Stands>) -> Verdict {
        // Whose removal it was, or whether it was there for a while, nothing tells.
        let Some(now) = now else { return Verdict::Unknown };
        if now.recent.contains(&self.number) {
            return Verdict::Made;
        }
        // A record that is new since may be a second one after it.
        let Some((version, recent)) = &self.before else { return Verdict::Unknown };
        if now.version == *version {
            return Verdict::Open;
        }
        // What is still remembered from before it would have been forgotten before it.
        let is_remembered = recent.iter().any(|number| now.recent.contains(number));
        if is_remembered { Verdict::Never } else { Verdict::Unknown }
    }
}

/// `None`: there is nothing to be sent.
fn begin(now: Option<&Stands>, next: Next<()>) -> Option<Attempt> {
    let number = task::random_u64();
    let new = match next {
        Next::Keep(()) => return None,
        Next::Remove(()) => None,
        Next::Put(body, ()) => Some(sealed(now, number, &body)),
    };
    let before = now.map(|now| (now.version, now.recent.clone()));
    Some(Attempt { number, before, new, is_in_doubt: false })
}

/// Changes a record as `apply` says, which is asked anew for each try that begins anew, and given the body that is there.
pub(crate) async fn change<T>(
    meta: &dyn Meta,
    key: &[u8],
    mut apply: impl FnMut(Option<&[u8]>) -> Result<Next<T>, Error>,
) -> Result<T, Failed> {
    change_while(meta, key, &|| Ok(()), &mut apply).await
}

/// The same as long as it may be done, which is asked right before each try.
pub(crate) async fn change_while<T>(
    meta: &dyn Meta,
    key: &[u8],
    may: &dyn Fn() -> Result<(), Error>,
    mut apply: impl FnMut(Option<&[u8]>) -> Result<Next<T>, Error>,
) -> Result<T, Failed> {
    settle(meta, key, false, may, |now| apply(now.map(|now| &*now.body))).await
}

/// [`change`], where it does no harm if it is made twice, or again after another has undone it: where nobody can tell, it begins
/// anew. What it gives is what the last try has made, and of that alone it is sure: what one before it may have made is nobody's.
pub(crate) async fn ensure<T>(
    meta: &dyn Meta,
    key: &[u8],
    mut apply: impl FnMut(Option<&[u8]>) -> Result<Next<T>, Error>,
) -> Result<T, Error> {
    ensure_while(meta, key, &|| Ok(()), &mut apply).await
}

/// The same as long as it may be done, which is asked right before each try.
pub(crate) async fn ensure_while<T>(
    meta: &dyn Meta,
    key: &[u8],
    may: &dyn Fn() -> Result<(), Error>,
    mut apply: impl FnMut(Option<&[u8]>) -> Result<Next<T>, Error>,
) -> Result<T, Error> {
    let ensured = settle(meta, key, true, may, |now| apply(now.map(|now| &*now.body)));
    ensured.await.map_err(|failed| failed.error)
}

/// Changes a record that stands as it did at this version; `None`: it does not.
pub(crate) async fn change_at<T>(
    meta: &dyn Meta,
    key: &[u8],
    version: Version,
    mut apply: impl FnMut(&[u8]) -> Result<Next<T>, Error>,
) -> Result<Option<T>, Failed> {
    settle(meta, key, false, &|| Ok(()), |now| match now.filter(|now| now.version == version) {
        Some(now) => Ok(apply(&now.body)?.map(Some)),
        None => Ok(Next::Keep(None)),
    })
    .await
}

async fn settle<T>(
    meta: &dyn Meta,
    key: &[u8],
    may_repeat: bool,
    may: &dyn Fn() -> Result<(), Error>,
    mut apply: impl FnMut(Option<&Stands>) -> Result<Next<T>, Error>,
) -> Result<T, Failed> {
    // What was made last is what was sent: only a change that begins anew is asked for.
    let mut outcome = None;
    let mut apply = |now: Option<&Stands>| Ok(apply(now)?.map(|told| outcome = Some(told)));
    settle_as(meta, key, may_repeat, may, &mut apply).await?;
    Ok(outcome.expect("asked for at least once"))
}

/// What makes a change of a record as it stands.
type Apply<'a> = dyn FnMut(Option<&Stands>) -> Result<Next<()>, Error> + 'a;

/// The same, whatever is told of the change: one body for all of them.
fn settle_as<'a>(
    meta: &'a dyn Meta,
    key: &'a [u8],
    may_repeat: bool,
    may: &'a dyn Fn() -> Result<(), Error>,
    apply: &'a mut Apply<'_>,
) -> LocalFuture<'a, Result<(), Failed>> {
    Box::pin(async move {
        let mut doubtful: Option<Attempt> = None;
        let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_LAST);
        for _ in 0..TRIES_MAX {
            let may_be_done = doubtful.is_some();
            let now = load(meta, key).await.map_err(|error| Failed { error, may_be_done, is_past: false })?;
            let again = match doubtful.take() {
                None => None,
                Some(attempt) => match attempt.judge(now.as_ref()) {
                    Verdict::Made => return Ok(()),
                    // The very same again: whichever of the two is made, it is this one.
                    Verdict::Open => Some(attempt),
                    Verdict::Never => None,
                    Verdict::Unknown if may_repeat => None,
                    Verdict::Unknown => {
                        let error = Error::Unavailable("nobody can tell whether a change of a record was made".into());
                        return Err(Failed { error, may_be_done: true, is_past: true });
                    }
                },
            };
            let mut attempt = match again {
                Some(attempt) => attempt,
                None => match begin(now.as_ref(), apply(now.as_ref())?) {
                    Some(attempt) => attempt,
                    None => return Ok(()),
                },
            };
            may().map_err(|error| Failed { error, may_be_done, is_past: false })?;
            let told = meta.swap(key, attempt.version(), attempt.new.clone()).await;
            match told.map_err(|error| Failed { error, may_be_done: true, is_past: false })? {
                Swapped::Done(_) => return Ok(()),
                Swapped::Changed => {}
                Swapped::Unknown => attempt.is_in_doubt = true,
            }
            doubtful = Some(attempt).filter(|attempt| attempt.is_in_doubt);
            time::sleep(jittered(backoff.pause())).await;
        }
        let error = Error::Unavailable("others change a record all the time".into());
        Err(Failed { error, may_be_done: doubtful.is_some(), is_past: false })
    })
}

/// A value: the numbers that are there with this one, and the body.
fn sealed(now: Option<&Stands>, number: u64, body: &[u8]) -> Vec<u8> {
    let recent = now.map_or(&[][..], |now| &now.recent);
    let kept = &recent[recent.len().saturating_sub(RECENT_MAX - 1)..];
    let mut value = vec![FORMAT, kept.len() as u8 + 1];
    value.extend(kept.iter().chain([&number]).flat_map(|number| number.to_le_bytes()));
    value.extend(body);
    value
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
