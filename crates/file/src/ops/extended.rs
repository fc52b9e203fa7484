//! Extended attributes, in the inode: those of users and of whoever is trusted, and labels of security. There are no access control
//! lists: `system.` attributes are refused, as are those of no namespace.

use engine::task::LocalFuture;

use super::shown;
use crate::error::Error;
use crate::fs::FileSystem;
use crate::record::Time;
use crate::record::inode::{ATTRIBUTE_NAME_BYTES_MAX, ATTRIBUTES_BYTES_MAX};

/// What an attribute's name begins with. Of `system.` there is nothing: neither access control lists nor anything else.
const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
/// What a program that is run may do.
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Whether an attribute may, must or must not be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetMode {
    /// It may.
    Any,
    /// It must not (XATTR_CREATE).
    Create,
    /// It must (XATTR_REPLACE).
    Replace,
}

impl FileSystem {
    /// The value of an attribute.
    pub fn get_xattr<'a>(&'a self, ino: u64, name: &'a [u8]) -> LocalFuture<'a, Result<Vec<u8>, Error>> {
        Box::pin(async move {
            check_attribute(name)?;
            // The kernel asks for this one before each write.
            let guess = if name == CAPABILITY { self.guess_inode(ino) } else { None };
            let mut inode = match guess {
                Some(held) => held.record,
                None => self.get_inode(ino).await?,
            };
            inode.attributes.remove(name).ok_or_else(|| Error::NoAttribute(shown(name)))
        })
    }

    /// The names of all attributes, in order.
    pub fn list_xattrs(&self, ino: u64) -> LocalFuture<'_, Result<Vec<Vec<u8>>, Error>> {
        Box::pin(async move { Ok(self.get_inode(ino).await?.attributes.into_keys().collect()) })
    }

    /// Sets an attribute.
    pub fn set_xattr<'a>(
        &'a self,
        ino: u64,
        name: &'a [u8],
        value: &'a [u8],
        mode: SetMode,
    ) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_attribute(name)?;
            self.change_inode(ino, |inode| {
                match (mode, inode.attributes.contains_key(name)) {
                    (SetMode::Create, true) => return Err(Error::Exists(shown(name))),
                    (SetMode::Replace, false) => return Err(Error::NoAttribute(shown(name))),
                    _ => {}
                }
                inode.attributes.insert(name.to_vec(), value.to_vec());
                if inode.attributes_bytes() > ATTRIBUTES_BYTES_MAX {
                    return Err(Error::NoSpace(format!("an inode holds {ATTRIBUTES_BYTES_MAX} bytes of attributes")));
                }
                inode.changed = Time::now();
                Ok(())
            })
            .await?;
            Ok(())
        })
    }

    /// Removes an attribute.
    pub fn remove_xattr<'a>(&'a self, ino: u64, name: &'a [u8]) -> LocalFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            check_attribute(name)?;
            self.change_inode(ino, |inode| {
                inode.attributes.remove(name).ok_or_else(|| Error::NoAttribute(shown(name)))?;
                inode.changed = Time::now();
                Ok(())
            })
            .await?;
            Ok(())
        })
    }
}

fn check_attribute(name: &[u8]) -> Result<(), Error> {
    if !(1..=ATTRIBUTE_NAME_BYTES_MAX).contains(&name.len()) || name.contains(&0) {
        return Err(Error::Range("a name has 1 to 255 bytes"));
    }
    let is_of = |namespace: &&[u8]| name.len() > namespace.len() && name.starts_with(namespace);
    match NAMESPACES.iter().any(is_of) {
        true => Ok(()),
        false => Err(Error::NotSupported("attributes but user., trusted. and security.")),
    }
}
