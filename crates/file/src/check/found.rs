//! [`Found`]: all that a look has found.

use std::collections::BTreeSet;

use engine::time::Instant;

use super::clients::Client;
use super::listed::Listed;
use super::maps::Inodes;
use super::names::Loose;
use super::tries::Names;
use crate::data::{Region, Survey};

/// See the module.
pub(crate) struct Found {
    pub(crate) listed: Listed,
    pub(crate) survey: Survey,
    pub(crate) inodes: Inodes,
    pub(crate) found: Names,
    pub(crate) clients: Vec<Client>,
    /// Regions that are nobody's for sure.
    pub(crate) regions: Vec<(Region, u32)>,
    pub(crate) loose: Vec<Loose>,
    /// Inodes that are left alone.
    pub(crate) spared: BTreeSet<u64>,
    /// All names were read.
    pub(crate) is_whole: bool,
    /// Before anything was read but keys.
    pub(crate) begun: Instant,
}
