//! [`Link`]: what a store must know of a member's connection beside its commands; [`AnyLink`]: one of any kind.

use std::any::TypeId;
use std::rc::Rc;
use std::sync::Arc;

use device::{
    AnyNamespace, Durability, Error, Fault, FileNamespace, Lba, Memory, Namespace, NamespaceInfo, Writability,
};
use engine::file::Lifetime;
use engine::task::LocalFuture;
use engine::{Buf, View};
use fabric::host::RemoteNamespace;

/// A namespace whose connection may come and go. The defaults are those of one that is always there.
pub trait Link: Namespace {
    /// Whether commands can be sent now.
    fn is_connected(&self) -> bool {
        true
    }

    /// Changes with every new connection: what answers now may not be what answered before.
    fn epoch(&self) -> u64 {
        0
    }
}

/// A member's connection, so that the store is compiled once, here. A remote namespace, which is what members are in practice, is
/// reached by a `match`; any other kind costs a box per command. A clone is the same connection.
#[derive(Clone)]
pub enum AnyLink {
    /// Over NVMe/TCP.
    Remote(Rc<RemoteNamespace>),
    /// Any other kind.
    Other(Rc<dyn Methods>),
}

/// The same connection, not merely the same namespace.
impl PartialEq for AnyLink {
    fn eq(&self, other: &AnyLink) -> bool {
        match (self, other) {
            (AnyLink::Remote(left), AnyLink::Remote(right)) => Rc::ptr_eq(left, right),
            (AnyLink::Other(left), AnyLink::Other(right)) => Rc::ptr_eq(left, right),
            _ => false,
        }
    }
}

impl<L: Link> From<Rc<L>> for AnyLink {
    fn from(link: Rc<L>) -> AnyLink {
        if TypeId::of::<L>() != TypeId::of::<RemoteNamespace>() {
            return AnyLink::Other(link);
        }
        let any: Rc<dyn std::any::Any> = link;
        AnyLink::Remote(any.downcast().unwrap_or_else(|_| unreachable!("its type was looked at above")))
    }
}

impl From<RemoteNamespace> for AnyLink {
    fn from(remote: RemoteNamespace) -> AnyLink {
        AnyLink::Remote(Rc::new(remote))
    }
}

impl<L: Link> From<Arc<L>> for AnyLink {
    fn from(link: Arc<L>) -> AnyLink {
        AnyLink::Other(Rc::new(link))
    }
}

impl Link for Memory {}
impl Link for FileNamespace {}
impl Link for AnyNamespace {}
impl<N: Namespace> Link for Fault<N> {}

impl Link for RemoteNamespace {
    fn is_connected(&self) -> bool {
        RemoteNamespace::is_connected(self)
    }

    fn epoch(&self) -> u64 {
        RemoteNamespace::epoch(self)
    }
}

impl<N: Link> Link for Arc<N> {
    fn is_connected(&self) -> bool {
        N::is_connected(self)
    }

    fn epoch(&self) -> u64 {
        N::epoch(self)
    }
}

impl<N: Link> Link for Rc<N> {
    fn is_connected(&self) -> bool {
        N::is_connected(self)
    }

    fn epoch(&self) -> u64 {
        N::epoch(self)
    }
}

impl Link for AnyLink {
    fn is_connected(&self) -> bool {
        match self {
            AnyLink::Remote(remote) => Link::is_connected(&**remote),
            AnyLink::Other(other) => Methods::is_connected(&**other),
        }
    }

    fn epoch(&self) -> u64 {
        match self {
            AnyLink::Remote(remote) => Link::epoch(&**remote),
            AnyLink::Other(other) => Methods::epoch(&**other),
        }
    }
}

/// All methods of [`Namespace`] and [`Link`], none with a default: what a kind overrides must not be lost here.
#[allow(missing_docs)] // as those of `Namespace` and `Link`
pub trait Methods {
    fn is_connected(&self) -> bool;
    fn epoch(&self) -> u64;
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
    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error>;
    fn set_attribute<'a>(&'a self, key: &'static str, value: &'a [u8]) -> LocalFuture<'a, Result<(), Error>>;
}

impl<L: Link> Methods for L {
    fn is_connected(&self) -> bool {
        Link::is_connected(self)
    }

    fn epoch(&self) -> u64 {
        Link::epoch(self)
    }

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

    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        Namespace::attribute(self, key)
    }

    fn set_attribute<'a>(&'a self, key: &'static str, value: &'a [u8]) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(Namespace::set_attribute(self, key, value))
    }
}

impl Namespace for AnyLink {
    fn info(&self) -> NamespaceInfo {
        match self {
            AnyLink::Remote(remote) => Namespace::info(&**remote),
            AnyLink::Other(other) => Methods::info(&**other),
        }
    }

    async fn read(&self, lba: Lba, buf: Buf) -> (Result<(), Error>, Buf) {
        match self {
            AnyLink::Remote(remote) => Namespace::read(&**remote, lba, buf).await,
            AnyLink::Other(other) => Methods::read(&**other, lba, buf).await,
        }
    }

    async fn write(&self, lba: Lba, data: View, durability: Durability) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::write(&**remote, lba, data, durability).await,
            AnyLink::Other(other) => Methods::write(&**other, lba, data, durability).await,
        }
    }

    async fn flush(&self) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::flush(&**remote).await,
            AnyLink::Other(other) => Methods::flush(&**other).await,
        }
    }

    async fn compare(&self, lba: Lba, expected: View) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::compare(&**remote, lba, expected).await,
            AnyLink::Other(other) => Methods::compare(&**other, lba, expected).await,
        }
    }

    async fn compare_and_write(
        &self,
        lba: Lba,
        expected: View,
        new: View,
        durability: Durability,
    ) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::compare_and_write(&**remote, lba, expected, new, durability).await,
            AnyLink::Other(other) => Methods::compare_and_write(&**other, lba, expected, new, durability).await,
        }
    }

    async fn write_zeroes(&self, lba: Lba, blocks: u64, durability: Durability) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::write_zeroes(&**remote, lba, blocks, durability).await,
            AnyLink::Other(other) => Methods::write_zeroes(&**other, lba, blocks, durability).await,
        }
    }

    async fn deallocate(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::deallocate(&**remote, lba, blocks).await,
            AnyLink::Other(other) => Methods::deallocate(&**other, lba, blocks).await,
        }
    }

    async fn verify(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::verify(&**remote, lba, blocks).await,
            AnyLink::Other(other) => Methods::verify(&**other, lba, blocks).await,
        }
    }

    async fn write_uncorrectable(&self, lba: Lba, blocks: u64) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::write_uncorrectable(&**remote, lba, blocks).await,
            AnyLink::Other(other) => Methods::write_uncorrectable(&**other, lba, blocks).await,
        }
    }

    async fn hint_lifetime(&self, lifetime: Lifetime) -> bool {
        match self {
            AnyLink::Remote(remote) => Namespace::hint_lifetime(&**remote, lifetime).await,
            AnyLink::Other(other) => Methods::hint_lifetime(&**other, lifetime).await,
        }
    }

    fn writability(&self) -> Writability {
        match self {
            AnyLink::Remote(remote) => Namespace::writability(&**remote),
            AnyLink::Other(other) => Methods::writability(&**other),
        }
    }

    fn used_blocks(&self) -> u64 {
        match self {
            AnyLink::Remote(remote) => Namespace::used_blocks(&**remote),
            AnyLink::Other(other) => Methods::used_blocks(&**other),
        }
    }

    fn attribute(&self, key: &'static str) -> Result<Option<Vec<u8>>, Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::attribute(&**remote, key),
            AnyLink::Other(other) => Methods::attribute(&**other, key),
        }
    }

    async fn set_attribute(&self, key: &'static str, value: &[u8]) -> Result<(), Error> {
        match self {
            AnyLink::Remote(remote) => Namespace::set_attribute(&**remote, key, value).await,
            AnyLink::Other(other) => Methods::set_attribute(&**other, key, value).await,
        }
    }
}
