//! A port that a test may leave and come back to, and others that run beside it are not given meanwhile.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt};

/// A port of loopback that is kept until this is dropped, although nothing listens here: who asks for any port is not given one
/// that a socket is bound to, and who names it may listen at it with `SO_REUSEADDR`, as all servers do.
pub struct Port {
    _kept: OwnedFd,
    pub address: SocketAddr,
}

impl Port {
    pub fn keep() -> Port {
        let kept = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        sockopt::set_socket_reuseaddr(&kept, true).expect("set");
        bind(&kept, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).expect("loopback has ports");
        let address = getsockname(&kept).expect("bound").try_into().expect("an address of the internet");
        Port { _kept: kept, address }
    }
}
