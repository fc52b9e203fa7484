//! [`Local`]: a client's share of one quota as the client knows it. No I/O.
//!
//! ```text
//!  granted   what the record says that this client has
//!  free      of that, what can be taken, with what was freed since
//!  out       what was taken, and may come to count
//!  spent     granted - free - out: what has come to count since the record was told, less what was freed
//! ```
//! A change of the record moves `spent` from the share to what is used there, and makes the share as large as `free + out` and
//! what it gains, or less what it gives back; used and share together change by that alone.
//!
//! **One change at a time, and its outcome is known before the next**: the record says the number of the last one, which nobody
//! else changes. What a change gives back is not taken before it is known not to have been made; what it gains, not before it is
//! known to have been.

use std::time::Duration;

use engine::time::{self, Instant};

use crate::access::draw;
use crate::amount::Amount;
use crate::error::Error;
use crate::meta::Version;
use crate::record::quota::{QuotaRecord, SHARES_MAX, Share};

/// What a client asks for at once, at most. Chosen: a fast network fills it in tens of milliseconds, and few of them are much
/// beside a quota that is worth one.
const SHARE_MAX: Amount = Amount { bytes: 64 << 20, files: 1024 };
/// Of what is left it asks for so much: what others hold is little where little is left.
const PARTS: i64 = 8;
/// A share that nobody uses goes back after so long. Chosen: longer than bytes lie that nobody flushes, so that a writer that takes
/// its time keeps it; and a moment for who waits for it.
const IDLE: Duration = Duration::from_secs(30);
/// Until what was sent, and of which nobody has learnt the outcome, has come, or never does. Derived: a command takes effect within
/// half an hour; the rest is for what was sent again.
const DOUBTED_FOR: Duration = Duration::from_secs(40 * 60);

/// Why the record is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// So that there is a share.
    Enter,
    /// So much is to be had, beyond the limit where that is forced.
    Take(Amount, bool),
    /// What was used is told, and what is not wanted goes back.
    Settle,
    /// The client ends.
    Leave,
}

/// A change that was sent.
pub(crate) struct Sent {
    /// The record was at this version.
    pub(crate) version: Version,
    pub(crate) new: QuotaRecord,
    /// The share, as it is then; `None`: there is none.
    share: Option<Share>,
    gained: Amount,
    given_back: Amount,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Local {
    /// Counts how often the share was lost.
    term: u64,
    /// The client and number by which the share stands in the record.
    stands: Option<(u64, u64)>,
    granted: Amount,
    free: Amount,
    out: Amount,
    /// Who has entered.
    holds: usize,
    used_at: Instant,
    doubted: Option<Instant>,
    /// The change of which the outcome is not known yet.
    pub(crate) sent: Option<Sent>,
}

impl Local {
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// Whether there is a share under this client's number, as far as is known. **Not while it is being given back**: that may have
    /// been made, and then nobody who counts knows of what goes by this client, which would be taken off twice.
    pub(crate) fn stands_for(&self, client: u64) -> bool {
        let ends = self.sent.as_ref().is_some_and(|sent| sent.share.is_none());
        !ends && self.stands.is_some_and(|(of, _)| of == client)
    }

    /// What of the share is not used, and nobody else can have.
    pub(crate) fn unused(&self) -> Amount {
        self.free + self.out
    }

    pub(crate) fn take(&mut self, amount: Amount) -> bool {
        let fits = amount.fits(self.free.max(Amount::ZERO));
        if fits {
            (self.free, self.out, self.used_at) = (self.free - amount, self.out + amount, time::now());
        }
        fits
    }

    pub(crate) fn enter(&mut self) {
        (self.holds, self.used_at) = (self.holds + 1, time::now());
    }

    pub(crate) fn leave(&mut self) {
        (self.holds, self.used_at) = (self.holds.saturating_sub(1), time::now());
    }

    pub(crate) fn spend(&mut self, term: u64, amount: Amount) {
        if term == self.term {
            self.out = self.out - amount;
        }
    }

    pub(crate) fn recall(&mut self, term: u64, amount: Amount) {
        if term == self.term {
            self.out = self.out + amount;
        }
    }

    pub(crate) fn give_back(&mut self, term: u64, amount: Amount) {
        if term == self.term {
            (self.out, self.free) = (self.out - amount, self.free + amount);
        }
    }

    pub(crate) fn refund(&mut self, term: u64, amount: Amount) {
        if term == self.term {
            (self.free, self.used_at) = (self.free + amount, time::now());
        }
    }

    pub(crate) fn doubt(&mut self) {
        self.doubted = Some(time::now());
    }

    /// Whether nothing of this client's can come to count any more, nor be freed, but by what is taken anew.
    fn is_at_rest(&self) -> bool {
        let is_doubted = self.doubted.is_some_and(|since| since.elapsed() < DOUBTED_FOR);
        self.holds == 0 && self.out == Amount::ZERO && !is_doubted
    }

    /// Whether it is worth a change of the record, or may be.
    pub(crate) fn has_news(&self, client: u64) -> bool {
        let is_idle = self.used_at.elapsed() >= IDLE;
        let is_told = self.granted == self.unused() && self.sent.is_none();
        !is_told || (self.stands.is_some() && (is_idle || !self.stands_for(client)))
    }

    /// Nothing is known of it that anybody could need.
    pub(crate) fn is_nothing(&self) -> bool {
        self.stands.is_none() && self.sent.is_none() && self.is_at_rest()
    }

    /// The record was read. Whether the change that was sent may yet be made, and is to be sent again as it was.
    pub(crate) fn look(&mut self, version: Version, record: &QuotaRecord) -> bool {
        if let Some(sent) = &self.sent {
            let of = |stands: (u64, u64)| record.share(stands.0).filter(|share| share.number == stands.1);
            let is_made = match &sent.share {
                Some(share) => of((share.client, share.number)).is_some(),
                None => self.stands.is_none_or(|stands| of(stands).is_none()),
            };
            if is_made {
                self.made();
            } else if sent.version == version {
                return true;
            } else {
                self.not_made();
            }
        }
        if let Some((client, number)) = self.stands
            && record.share(client).is_none_or(|share| share.number != number)
        {
            self.lose();
        }
        false
    }

    /// Others took this client for dead, and have counted its share as used.
    fn lose(&mut self) {
        (self.term, self.stands) = (self.term + 1, None);
        (self.granted, self.free, self.out) = (Amount::ZERO, Amount::ZERO, Amount::ZERO);
    }

    pub(crate) fn made(&mut self) {
        let Some(Sent { share, gained, .. }) = self.sent.take() else { return };
        self.stands = share.map(|share| (share.client, share.number));
        self.granted = share.map_or(Amount::ZERO, |share| share.held);
        self.free = self.free + gained;
    }

    pub(crate) fn not_made(&mut self) {
        if let Some(sent) = self.sent.take() {
            self.free = self.free + sent.given_back;
        }
    }

    /// What the record is to become, as it was just looked at; false: it stays. It is `sent` then.
    ///
    /// # Errors
    /// [`Error::Quota`]: it is not to be had.
    pub(crate) fn plan(
        &mut self,
        (version, record): (Version, &QuotaRecord),
        client: u64,
        want: Want,
    ) -> Result<bool, Error> {
        let left = record.left();
        let (mut gained, mut given_back, mut ends) = (Amount::ZERO, Amount::ZERO, false);
        match want {
            Want::Enter => {}
            Want::Take(amount, is_forced) => {
                let needed = (amount - self.free).max(Amount::ZERO);
                if !is_forced && !needed.fits(left.max(Amount::ZERO)) {
                    return Err(Error::Quota(over(record, needed)));
                }
                let more = left.share(PARTS).min(SHARE_MAX).max(needed);
                let only = |needed: i64, more: i64| if needed > 0 { more } else { 0 };
                gained = Amount { bytes: only(needed.bytes, more.bytes), files: only(needed.files, more.files) };
            }
            Want::Settle if self.used_at.elapsed() < IDLE => {
                let keeps = (left + self.free).share(PARTS).min(SHARE_MAX).max(Amount::ZERO);
                given_back = (self.free - keeps).max(Amount::ZERO);
            }
            Want::Settle | Want::Leave => (given_back, ends) = (self.free, self.is_at_rest()),
        }
        let held = self.unused() + gained - given_back;
        let stays = match want {
            Want::Enter | Want::Take(..) => self.stands_for(client) && gained == Amount::ZERO,
            Want::Settle | Want::Leave => {
                let is_own = self.stands.is_none() || self.stands_for(client);
                self.granted == held && is_own && !(ends && self.stands.is_some())
            }
        };
        if stays || (self.stands.is_none() && ends) {
            return Ok(false);
        }
        let mut new = record.clone();
        new.used = new.used + (self.granted - self.unused());
        if let Some((old, _)) = self.stands {
            new.remove_share(old);
        }
        // One that is not known here is of a change that came when nobody asked for it any more.
        new.fold_share(client);
        let share = (!ends).then(|| Share { client, number: draw(), held });
        share.iter().for_each(|share| new.set_share(*share));
        if new.shares.len() > SHARES_MAX {
            return Err(Error::NoSpace(format!("more than {SHARES_MAX} clients use one quota")));
        }
        self.free = self.free - given_back;
        self.sent = Some(Sent { version, new, share, gained, given_back });
        Ok(true)
    }
}

/// What is over which limit.
fn over(record: &QuotaRecord, needed: Amount) -> String {
    let left = record.left();
    match (needed.bytes > left.bytes.max(0), record.limits.bytes, record.limits.files) {
        (true, Some(limit), _) => {
            let taken = record.taken().bytes;
            format!("{taken} of {limit} bytes are used, or set aside by clients, and {} more are wanted", needed.bytes)
        }
        (_, _, limit) => {
            let (taken, limit) = (record.taken().files, limit.unwrap_or(u64::MAX));
            format!("{taken} of {limit} files are there, or set aside by clients")
        }
    }
}
