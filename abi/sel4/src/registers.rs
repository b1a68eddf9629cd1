//! A thread's registers, in the order in which messages carry them.
//!
//! `TCB_CopyRegisters` copies two groups of registers: the *frame* registers are the first [`FRAME_COUNT`] in this
//! order, the *integer* registers are the others.

macro_rules! registers {
    ($($name:ident:$number:literal)*) => {
        /// The registers of a thread as `TCB_ReadRegisters` and `TCB_WriteRegisters` carry them (`seL4_UserContext`).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        #[doc(alias = "seL4_UserContext")]
        #[allow(missing_docs)] // The names are RISC-V's.
        pub struct Registers {
            $(pub $name: u64,)*
        }

        /// Their names, in order.
        pub const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Machine numbers of the registers, in order; the first, `pc`, has none.
        pub const NUMBERS: [usize; COUNT] = [$($number),*];

        impl Registers {
            /// Returns the registers as words, in order.
            pub const fn to_words(&self) -> [u64; COUNT] {
                [$(self.$name),*]
            }

            /// Makes registers of words, in order.
            pub const fn from_words(words: [u64; COUNT]) -> Registers {
                let [$($name),*] = words;
                Registers { $($name),* }
            }
        }
    };
}

registers! {
    pc:0 ra:1 sp:2 gp:3 s0:8 s1:9 s2:18 s3:19 s4:20 s5:21 s6:22 s7:23 s8:24 s9:25 s10:26 s11:27
    a0:10 a1:11 a2:12 a3:13 a4:14 a5:15 a6:16 a7:17 t0:5 t1:6 t2:7 t3:28 t4:29 t5:30 t6:31 tp:4
}

/// Returns the machine's number of the register with this name.
///
/// # Panics
///
/// No register has this name, or it is `pc`.
pub const fn number_of(name: &str) -> usize {
    let mut index = 1;
    while index < COUNT {
        if is_equal(NAMES[index].as_bytes(), name.as_bytes()) {
            return NUMBERS[index];
        }
        index += 1;
    }
    panic!("no register has this name");
}

/// Compares slices in constants.
const fn is_equal(left: &[u8], right: &[u8]) -> bool {
    let mut index = 0;
    while index < left.len() && index < right.len() && left[index] == right[index] {
        index += 1;
    }
    index == left.len() && index == right.len()
}

/// Number of registers.
pub const COUNT: usize = 32;
/// Number of the first registers that `TCB_CopyRegisters` treats as frame registers.
pub const FRAME_COUNT: usize = 16;

const _: () = {
    assert!(NAMES.len() == COUNT);
    assert!(size_of::<Registers>() == COUNT * 8);
};
