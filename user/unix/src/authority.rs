//! Authority of processes over others: capabilities, with Linux's names and numbers.
//!
//! A process is named by its number; 0 is the caller. The three sets are those of `capabilities(7)`.

use abi_unix::authority::{Held, version};

use crate::{Result, call};

fn header(process: u32) -> [u32; 2] {
    [version::THREE, process]
}

/// Returns the capabilities that a process holds.
///
/// # Errors
///
/// `ESRCH` if there is no such process.
#[doc(alias = "capget")]
pub fn held(process: u32) -> Result<Held> {
    let mut header = header(process);
    let mut bytes = [0; Held::SIZE];
    // SAFETY: the kernel reads the header, and writes the three sets to exclusively borrowed memory.
    unsafe { call!(GetCapabilities, header.as_mut_ptr(), bytes.as_mut_ptr()) }?;
    Ok(Held::from_bytes(bytes))
}

/// Sets the capabilities of a process: fewer than before, or with those that the caller may give to its descendants.
///
/// # Errors
///
/// `EPERM` for capabilities that neither the process holds nor the caller may give, and for a process that is not a
/// descendant of the caller, unless the caller has `CAP_SETPCAP`; `ESRCH`.
#[doc(alias = "capset")]
pub fn set(process: u32, held: Held) -> Result<()> {
    let header = header(process);
    let bytes = held.to_bytes();
    // SAFETY: the kernel reads both.
    unsafe { call!(SetCapabilities, header.as_ptr(), bytes.as_ptr()) }.map(drop)
}
