//! The names of coroutines for people: [`crate::spawn_named`] gives them, and the list of await points, a panic and the
//! debugger tell them.
//!
//! A coroutine enters its name in the table at its first poll, when its cid is known, and takes it out when it is
//! dropped; a poll in between costs one branch. So a coroutine without a name pays nothing at all.

use alloc::borrow::Cow;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::pin::Pin;
use core::task::{Context, Poll};

use coroutine::Cid;

use crate::executor;
use crate::lock::Lock;

/// The names of the coroutines that have one and have begun, by cid.
static NAMES: Lock<BTreeMap<u64, Name>> = Lock::new(BTreeMap::new());

/// The name of a coroutine. The debugger's commands read its text's address and length in the second and third word.
#[derive(Clone, Debug)]
#[repr(u64)]
pub(crate) enum Name {
    /// Of the program's constants.
    Of(&'static str),
    /// Made while the program runs. The text lies behind the two counters of its owners.
    Made(Arc<str>),
}

impl Name {
    pub(crate) fn text(&self) -> &str {
        match self {
            Name::Of(text) => text,
            Name::Made(text) => text,
        }
    }
}

impl From<Cow<'static, str>> for Name {
    fn from(name: Cow<'static, str>) -> Name {
        match name {
            Cow::Borrowed(name) => Name::Of(name),
            Cow::Owned(name) => Name::Made(name.into()),
        }
    }
}

/// A future of a coroutine with a name. The debugger's commands (`xtask/gdb/cops.py`) know this layout.
#[repr(C)]
pub(crate) struct Named<F> {
    name: Name,
    future: F,
    /// Under which the name is in the table.
    entered: Option<Cid>,
}

impl<F> Named<F> {
    pub(crate) fn new(name: Name, future: F) -> Named<F> {
        Named { name, future, entered: None }
    }
}

impl<F: Future> Future for Named<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: the future is pinned as the whole is: nothing below moves it, and neither does `drop`.
        let named = unsafe { self.get_unchecked_mut() };
        if named.entered.is_none() {
            named.entered = enter(&named.name);
        }
        // SAFETY: as above.
        unsafe { Pin::new_unchecked(&mut named.future) }.poll(context)
    }
}

impl<F> Drop for Named<F> {
    fn drop(&mut self) {
        if let Some(cid) = self.entered {
            // The name's memory is freed when the lock is free again.
            let name = NAMES.lock().remove(&cid.raw());
            drop(name);
        }
    }
}

/// Enters the name of the running coroutine.
#[cold]
fn enter(name: &Name) -> Option<Cid> {
    let cid = executor::current_or_none()?;
    NAMES.lock().insert(cid.raw(), name.clone());
    Some(cid)
}

/// Returns the name of a coroutine that has one and has begun.
pub(crate) fn of(cid: u64) -> Option<Name> {
    NAMES.lock().get(&cid).cloned()
}

/// Returns the name of a coroutine if it can be had without waiting, as a panic needs it.
#[cfg(target_os = "none")]
pub(crate) fn without_waiting(cid: u64) -> Option<Name> {
    NAMES.try_lock()?.get(&cid).cloned()
}
