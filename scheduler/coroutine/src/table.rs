//! The table of the scheduler's functions, from an image or linked in.

use core::ffi::c_void;
use core::sync::atomic::AtomicU64;

use abi_queue::{MAXIMUM_WORKERS, ReadyWord};
use scheduler::{Counters, Executor, Header, Hooks, Signals, entry};

use crate::image;

macro_rules! table {
    ($($(#[$documentation:meta])* $name:ident: $symbol:literal => $type:ty,)*) => {
        /// The functions of a scheduler: from its [image](Table::from_image), or linked in.
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct Table {
            $($(#[$documentation])* pub(crate) $name: $type,)*
        }

        impl Table {
            /// Looks the functions up in a loaded image of the scheduler.
            ///
            /// # Errors
            /// [`ImageError`]: this is not an image of the scheduler, or not of this version.
            ///
            /// # Safety
            /// `image` is the scheduler's image as it was built, mapped executable where it lies, for ever.
            pub unsafe fn from_image(image: &'static [u8]) -> Result<Table, ImageError> {
                let symbols = image::Symbols::parse(image)?;
                let table = Table {
                    $($name: {
                        let offset = symbols.find($symbol).ok_or(ImageError::Missing($symbol))?;
                        let code: *const u8 = &raw const *image.get(offset).ok_or(ImageError::Damaged)?;
                        // SAFETY: the caller guarantees that this is the scheduler's image, in which this symbol is a
                        // function of this type.
                        unsafe { core::mem::transmute::<*const u8, $type>(code) }
                    },)*
                };
                let version = (table.version)();
                if version >> 16 != entry::VERSION >> 16 {
                    return Err(ImageError::Version(version));
                }
                if (table.executor_size)() != size_of::<Executor>() {
                    return Err(ImageError::Layout);
                }
                Ok(table)
            }

            /// Returns the functions of the scheduler that is linked into this program.
            #[cfg(any(test, feature = "native"))]
            pub const fn native() -> Table {
                Table { $($name: entry::$name,)* }
            }
        }

        #[cfg(test)]
        const SYMBOLS: &[&str] = &[$($symbol,)*];
    };
}

table! {
    version: "cops_scheduler_version" => extern "C" fn() -> u32,
    executor_size: "cops_executor_size" => extern "C" fn() -> usize,
    executor_init: "cops_executor_init"
        => unsafe extern "C" fn(*mut Executor, *const [ReadyWord; MAXIMUM_WORKERS], *const Hooks),
    add_slots: "cops_add_slots" => unsafe extern "C" fn(*const Executor, *mut c_void, u32) -> isize,
    add_worker: "cops_add_worker" => unsafe extern "C" fn(*const Executor, u32, *const Signals),
    remove_worker: "cops_remove_worker" => unsafe extern "C" fn(*const Executor, u32),
    spawn: "cops_spawn" => unsafe extern "C" fn(*const Executor, *mut Header, u32) -> u64,
    wake: "cops_wake" => unsafe extern "C" fn(*const Executor, u64) -> isize,
    wake_here: "cops_wake_here" => unsafe extern "C" fn(*const Executor, u64, u32) -> isize,
    cancel: "cops_cancel" => unsafe extern "C" fn(*const Executor, u64) -> isize,
    set_priority: "cops_set_priority" => unsafe extern "C" fn(*const Executor, u64, u32) -> isize,
    priority: "cops_priority" => unsafe extern "C" fn(*const Executor, u64) -> isize,
    kind: "cops_kind" => unsafe extern "C" fn(*const Executor, u64) -> isize,
    state: "cops_state" => unsafe extern "C" fn(*const Executor, u64) -> isize,
    current: "cops_current" => unsafe extern "C" fn(*const Executor, u32) -> u64,
    suspend: "cops_suspend" => unsafe extern "C" fn(*const Executor, u32) -> u64,
    resume: "cops_resume" => unsafe extern "C" fn(*const Executor, u64) -> isize,
    run: "cops_run" => unsafe extern "C" fn(*const Executor, u32, *mut c_void) -> u32,
    run_one: "cops_run_one" => unsafe extern "C" fn(*const Executor, u32, *mut c_void) -> u32,
    run_strictly: "cops_run_strictly"
        => unsafe extern "C" fn(*const Executor, u32, *mut c_void, *const AtomicU64, u32) -> u32,
    counters: "cops_counters" => unsafe extern "C" fn(*const Executor, u32, *mut Counters),
    cid_at: "cops_cid_at" => unsafe extern "C" fn(*const Executor, u32) -> u64,
}

/// The reason why an image cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageError {
    /// It is not a 64-bit little-endian ELF image with dynamic symbols, or points outside itself.
    Damaged,
    /// The image lacks this function.
    Missing(&'static str),
    /// The image has this version, with another major number.
    Version(u32),
    /// The executor of the image has another size than this crate's.
    Layout,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_names_that_the_image_exports() {
        assert_eq!(SYMBOLS, entry::NAMES);
    }
}
