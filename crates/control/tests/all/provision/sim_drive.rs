//! One simulated drive.

use std::collections::BTreeMap;

use control::provision::Namespace;
use uuid::Uuid;

use super::drives::GIB;

#[derive(Clone, Debug)]
pub struct SimDrive {
    pub total: u64,
    pub thin: bool,
    pub is_away: bool,
    /// It takes as long to say nothing as a caller waits.
    pub answers_late: bool,
    pub refuses: Option<String>,
    /// Whether a namespace is blank can't be told.
    pub is_dark: bool,
    /// No namespace may become larger than that.
    pub grows_to: u64,
    /// Clones, by their tags.
    pub copies: BTreeMap<Uuid, Namespace>,
    /// Of which attempt's snapshot each of them is.
    pub attempts: BTreeMap<Uuid, u32>,
    pub namespaces: BTreeMap<u32, (Namespace, Option<(Uuid, usize)>)>,
}

impl SimDrive {
    pub fn new(gib: u64) -> SimDrive {
        SimDrive {
            total: gib * GIB,
            thin: true,
            is_away: false,
            answers_late: false,
            refuses: None,
            is_dark: false,
            grows_to: u64::MAX,
            copies: BTreeMap::new(),
            attempts: BTreeMap::new(),
            namespaces: BTreeMap::new(),
        }
    }

    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.namespaces.values().map(|(namespace, _)| namespace.bytes).sum())
    }

    /// Makes a namespace with the lowest number that is free.
    pub fn make(&mut self, bytes: u64) -> Namespace {
        let nsid = (1..).find(|nsid| !self.namespaces.contains_key(nsid)).unwrap();
        let namespace = Namespace { nsid, uid: Uuid::new_v4(), bytes };
        self.namespaces.insert(nsid, (namespace, None));
        namespace
    }
}
