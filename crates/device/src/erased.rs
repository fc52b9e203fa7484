//! [`Erased`]: a namespace of any kind behind a table of functions. It costs one box per command.

use std::sync::{Arc, Weak};

use engine::file::Lifetime;
use engine::task::LocalFuture;
use engine::{Buf, View};

use crate::{Durability, Error, Lba, Link, Namespace, NamespaceInfo, Writability, Zone, ZoneAction, ZonedInfo};

/// See the module. A clone is the same namespace.
#[derive(Clone)]
pub struct Erased(Arc<dyn ErasedMethods + Send + Sync>);

/// Tells an [`Erased`] from every other, and does not hold it.
pub struct Known(Weak<dyn ErasedMethods + Send + Sync>);

impl Erased {
    /// What it is known by.
    pub fn known(&self) -> Known {
        Known(Arc::downgrade(&self.0))
    }

    /// Whether it is the one that is known by this: itself, not one that is like it.
    pub fn is(&self, known: &Known) -> bool {
        Weak::ptr_eq(&Arc::downgrade(&self.0), &known.0)
    }

    /// A namespace whose kind is forgotten.
    pub fn new(namespace: impl Namespace + Send + Sync) -> Erased {
        Erased(Arc::new(namespace))
    }

    /// Clones that there are, this one among them.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
}

/// All methods of [`Namespace`], none with a default: what a kind overrides must not be lost here.
#[allow(missing_docs)] // as those of `Namespace`
pub trait ErasedMethods {
    fn info(&self) -> NamespaceInfo;
    fn read<'a>(&'a self, lba: Lba, buf: Buf) -> LocalFuture<'a, (Result<(), Error>, Buf)>;
    fn write<'a>(&'a self, lba: Lba, data: View, durability: Durability) -> LocalFuture<'a, Result<(), Error>>;
    fn flush<'a>(&'a self) -> LocalFuture<'a, Result<(), Error>>;
    fn compare<'a>(&'a self, lba: Lba, expected: View) -> LocalFuture<'a, Result<(), Error>>;
    fn compare_and_write<'a>(
        &'a self,
        lba: Lba,
        expected: View,
        new: View,
        durability: Durability,
    ) -> LocalFuture<'a, Result<(), Error>>;
    fn write_zeroes<'a>(&'a self, lba: Lba, blocks: u64, durability: Durability) -> LocalFuture<'a, Result<(), Error>>;
    fn deallocate<'a>(&'a self, lba: Lba, blocks: u64) -> LocalFuture<'a, Result<(), Error>>;
    fn verify<'a>(&'a self, lba: Lba, blocks: u64) -> LocalFuture<'a, Result<(), Error>>;
    fn write_uncorrectable<'a>(&'a self, lba: Lba, blocks: u64) -> LocalFuture<'a, Result<(), Error>>;
    fn hint_lifetime<'a>(&'a self, lifetime: Lifetime) -> LocalFuture<'a, bool>;
    fn writability(&self) -> Writability;
    fn used_blocks(&self) -> u64;
    fn link(&self) -> Link;
    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error>;
    fn set_attribute<'a>(&'a self, key: &'static str, value: &'a [u8]) -> LocalFuture<'a, Result<(), Error>>;
    fn zoned(&self) -> Option<ZonedInfo>;
    fn zones<'a>(&'a self, from: Lba, max: usize) -> LocalFuture<'a, Result<Vec<Zone>, Error>>;
    fn change_zone<'a>(&'a self, zone: Option<Lba>, action: ZoneAction) -> LocalFuture<'a, Result<(), Error>>;
    fn append<'a>(&'a self, zone: Lba, data: View, durability: Durability) -> LocalFuture<'a, Result<Lba, Error>>;
}

impl<N: Namespace> ErasedMethods for N {
    fn info(&self) -> NamespaceInfo {
        Namespace::info(self)
    }

    fn read<'a>(&'a self, lba: Lba, buf: Buf) -> LocalFuture<'a, (Result<(), Error>, Buf)> {
        Box::pin(Namespace::read(self, lba, buf))
    }

    fn write<'a>(&'a self, lba: Lba, data: View, durability: Durability) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::write(self, lba, data, durability))
    }

    fn flush<'a>(&'a self) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::flush(self))
    }

    fn compare<'a>(&'a self, lba: Lba, expected: View) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::compare(self, lba, expected))
    }

    fn compare_and_write<'a>(
        &'a self,
        lba: Lba,
        expected: View,
        new: View,
        durability: Durability,
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::compare_and_write(self, lba, expected, new, durability))
    }

    fn write_zeroes<'a>(&'a self, lba: Lba, blocks: u64, durability: Durability) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::write_zeroes(self, lba, blocks, durability))
    }

    fn deallocate<'a>(&'a self, lba: Lba, blocks: u64) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::deallocate(self, lba, blocks))
    }

    fn verify<'a>(&'a self, lba: Lba, blocks: u64) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::verify(self, lba, blocks))
    }

    fn write_uncorrectable<'a>(&'a self, lba: Lba, blocks: u64) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::write_uncorrectable(self, lba, blocks))
    }

    fn hint_lifetime<'a>(&'a self, lifetime: Lifetime) -> LocalFuture<'a, bool> {
        Box::pin(Namespace::hint_lifetime(self, lifetime))
    }

    fn writability(&self) -> Writability {
        Namespace::writability(self)
    }

    fn used_blocks(&self) -> u64 {
        Namespace::used_blocks(self)
    }

    fn link(&self) -> Link {
        Namespace::link(self)
    }

    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        Namespace::attribute(self, key)
    }

    fn set_attribute<'a>(&'a self, key: &'static str, value: &'a [u8]) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::set_attribute(self, key, value))
    }

    fn zoned(&self) -> Option<ZonedInfo> {
        Namespace::zoned(self)
    }

    fn zones<'a>(&'a self, from: Lba, max: usize) -> LocalFuture<'a, Result<Vec<Zone>, Error>> {
        Box::pin(Namespace::zones(self, from, max))
    }

    fn change_zone<'a>(&'a self, zone: Option<Lba>, action: ZoneAction) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::change_zone(self, zone, action))
    }

    fn append<'a>(&'a self, zone: Lba, data: View, durability: Durability) -> LocalFuture<'a, Result<Lba, Error>> {
        Box::pin(Namespace::append(self, zone, data, durability))
    }
}

impl Namespace for Erased {
    crate::delegate_namespace!(this => { Erased(inner) => (**inner) });
}
