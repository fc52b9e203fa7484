//! Who this host is.

use nvme::Nqn;

/// A host's name and identifier (NVMe Base 2.0 §4.5, §5.27.1.25). A target may let only certain names in, and keeps
/// reservations by the identifier; both should stay the same over restarts where that matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostIdentity {
    /// The host's NQN.
    pub nqn: Nqn,
    /// The host identifier; not zero.
    pub id: [u8; 16],
}

impl HostIdentity {
    /// A fresh identity in the form that the specification gives to names made from a UUID.
    pub fn random() -> HostIdentity {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&engine::task::random_u64().to_be_bytes());
        id[8..].copy_from_slice(&engine::task::random_u64().to_be_bytes());
        HostIdentity::of(uuid::Builder::from_random_bytes(id).into_uuid().into_bytes())
    }

    /// That of the host with this identifier, by the name that is made from it: targets refuse an identifier by another name.
    pub fn of(id: [u8; 16]) -> HostIdentity {
        let nqn = format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid::Uuid::from_bytes(id));
        HostIdentity { nqn: nqn.parse().expect("the form is an NQN"), id }
    }
}
