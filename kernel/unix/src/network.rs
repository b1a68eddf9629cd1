//! From the wire to sockets: the device, the coroutine that drives the `network` library's stack, and the calls' view
//! of it.

pub(crate) mod addressing;
pub(crate) mod interfaces;
pub(crate) mod listing;
pub(crate) mod netlink;
pub(crate) mod packet_socket;
pub(crate) mod shares;
pub(crate) mod socket;
pub(crate) mod stack;
pub(crate) mod wire;
