//! A thread's registers, in the order in which messages carry them.
//!
//! `TCB_CopyRegisters` copies two groups of registers: the *frame* registers are the first [`FRAME_COUNT`] in this order, the *integer*
//! registers are the others.

macro_rules! registers {
    ($($name:ident)*) => {
        /// The registers of a thread as `TCB_ReadRegisters` and `TCB_WriteRegisters` carry them (`seL4_UserContext`).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        #[allow(missing_docs)] // The names are RISC-V's.
        pub struct Registers {
            $(pub $name: u64,)*
        }

        /// Their names, in order.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        impl Registers {
            /// The registers as words, in order.
            pub const fn to_words(&self) -> [u64; COUNT] {
                [$(self.$name),*]
            }

            /// Registers from words, in order.
            pub const fn from_words(words: [u64; COUNT]) -> Registers {
                let [$($name),*] = words;
                Registers { $($name),* }
            }
        }
    };
}

registers! { pc ra sp gp s0 s1 s2 s3 s4 s5 s6 s7 s8 s9 s10 s11 a0 a1 a2 a3 a4 a5 a6 a7 t0 t1 t2 t3 t4 t5 t6 tp }

/// How many registers there are.
pub const COUNT: usize = 32;
/// How many of them, counted from the first, `TCB_CopyRegisters` treats as frame registers.
pub const FRAME_COUNT: usize = 16;

const _: () = {
    assert!(NAMES.len() == COUNT);
    assert!(size_of::<Registers>() == COUNT * 8);
};
