//! [`QuotaRecord`]: the quota of a directory: limits, what is used, and what clients have of it.
//!
//! ```text
//!   stamps   33 B        `stamps.rs`
//!   limits   u64, u64    bytes, files; all ones: none
//!   used     i64, i64    bytes, files; with the shares never less than what counts, and alone perhaps less than nothing
//!   shares   u16, then each, by client:
//!     client u64, number u64, bytes i64, files i64
//! ```

use super::stamps::Stamps;
use super::{Record, stamped};
use crate::amount::Amount;
use crate::bytes::{Reader, Writer};
use crate::error::Error;

/// Clients that have a share of one quota at once. Chosen: the record stays within the store's shorter values.
pub const SHARES_MAX: usize = 1000;
/// No limit.
const NONE: u64 = u64::MAX;
/// What no count reaches. Chosen: sums of two stay what they are.
const COUNT_MAX: i64 = 1 << 61;

/// What may count for a quota; `None`: anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Bytes of data in stripes.
    pub bytes: Option<u64>,
    /// Inodes.
    pub files: Option<u64>,
}

/// What a client has of a quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// The client.
    pub client: u64,
    /// Drawn anew by the client with each of its changes.
    pub number: u64,
    /// How much.
    pub held: Amount,
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QuotaRecord {
    /// Which changes it has had.
    pub stamps: Stamps,
    /// What may be used.
    pub limits: Limits,
    /// What is used, as far as clients have said.
    pub used: Amount,
    /// By client.
    pub shares: Vec<Share>,
}

fn limit(limit: Option<u64>) -> i64 {
    limit.map_or(COUNT_MAX, |limit| i64::try_from(limit).unwrap_or(COUNT_MAX).min(COUNT_MAX))
}

impl QuotaRecord {
    /// What is used, or may be any moment.
    pub fn taken(&self) -> Amount {
        self.shares.iter().fold(self.used, |taken, share| taken + share.held)
    }

    /// What may be taken yet; less than nothing where a limit was lowered.
    pub fn left(&self) -> Amount {
        Amount { bytes: limit(self.limits.bytes), files: limit(self.limits.files) } - self.taken()
    }

    /// The share of a client.
    pub fn share(&self, client: u64) -> Option<&Share> {
        self.shares.iter().find(|share| share.client == client)
    }

    /// Puts a client's share in the place of the one that it has.
    pub fn set_share(&mut self, share: Share) {
        self.remove_share(share.client);
        let at = self.shares.partition_point(|other| other.client < share.client);
        self.shares.insert(at, share);
    }

    /// Takes a client's share out: what it was.
    pub fn remove_share(&mut self, client: u64) -> Option<Share> {
        let at = self.shares.iter().position(|share| share.client == client)?;
        Some(self.shares.remove(at))
    }

    /// The share of a client that is no more is taken for used. Whether there was one.
    pub fn fold_share(&mut self, client: u64) -> bool {
        let gone = self.remove_share(client);
        self.used = self.used + gone.map_or(Amount::ZERO, |share| share.held);
        gone.is_some()
    }
}

fn write_amount(amount: Amount, to: &mut Writer) {
    to.u64(amount.bytes as u64).u64(amount.files as u64);
}

fn read_amount(from: &mut Reader<'_>) -> Result<Amount, Error> {
    let amount = Amount { bytes: from.u64()? as i64, files: from.u64()? as i64 };
    let is_sane = |count: i64| (-COUNT_MAX..=COUNT_MAX).contains(&count);
    from.check(is_sane(amount.bytes) && is_sane(amount.files), "a count that nothing has")?;
    Ok(amount)
}

impl Record for QuotaRecord {
    fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        self.stamps.write(&mut to);
        to.u64(self.limits.bytes.unwrap_or(NONE)).u64(self.limits.files.unwrap_or(NONE));
        write_amount(self.used, &mut to);
        to.u16(self.shares.len() as u16);
        for share in &self.shares {
            to.u64(share.client).u64(share.number);
            write_amount(share.held, &mut to);
        }
        to.0
    }

    fn decode(bytes: &[u8]) -> Result<QuotaRecord, Error> {
        let mut from = Reader::new("a quota", bytes);
        let stamps = Stamps::read(&mut from)?;
        let mut limit = || from.u64().map(|limit| Some(limit).filter(|limit| *limit != NONE));
        let limits = Limits { bytes: limit()?, files: limit()? };
        let (used, count) = (read_amount(&mut from)?, from.u16()?);
        from.check(usize::from(count) <= SHARES_MAX, "too many shares")?;
        let mut shares = Vec::new();
        for _ in 0..count {
            shares.push(Share { client: from.number()?, number: from.number()?, held: read_amount(&mut from)? });
        }
        from.check(shares.is_sorted_by(|a, b| a.client < b.client), "shares out of order")?;
        from.end()?;
        Ok(QuotaRecord { stamps, limits, used, shares })
    }

    stamped!(QuotaRecord);
}
