//! Error numbers: Linux's, which riscv64 shares with every generic architecture.
//!
//! A failed call returns `-number` in `a0`; every value from -4095 to -1 is an error and nothing else is.
//! Source: errno(3) of the Linux manual pages, `asm-generic/errno-base.h` and `asm-generic/errno.h`.

macro_rules! error_numbers {
    ($($(#[$meta:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Error of a system call.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u16)]
        #[allow(clippy::upper_case_acronyms)]
        pub enum Errno {
            $($(#[$meta])* #[doc = $text] $name = $number,)*
        }

        impl Errno {
            /// Every error number of this system.
            pub const ALL: &'static [Errno] = &[$(Errno::$name),*];

            /// Returns the symbolic name, as in C.
            pub const fn name(self) -> &'static str {
                match self { $(Errno::$name => stringify!($name),)* }
            }

            /// Returns a sentence for people, as `strerror` does.
            #[doc(alias = "strerror")]
            pub const fn message(self) -> &'static str {
                match self { $(Errno::$name => $text,)* }
            }

            /// Returns the error with this (positive) number.
            pub const fn from_number(number: u16) -> Option<Errno> {
                match number { $($number => Some(Errno::$name),)* _ => None }
            }
        }
    };
}

error_numbers! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such file or directory";
    ESRCH = 3, "no such process";
    EINTR = 4, "interrupted system call";
    EIO = 5, "input/output error";
    ENXIO = 6, "no such device or address";
    E2BIG = 7, "argument list too long";
    ENOEXEC = 8, "not an executable of this machine";
    EBADF = 9, "bad file descriptor";
    ECHILD = 10, "no child processes";
    EAGAIN = 11, "resource temporarily unavailable";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    ENOTBLK = 15, "block device required";
    EBUSY = 16, "device or resource busy";
    EEXIST = 17, "file exists";
    EXDEV = 18, "link across file systems";
    ENODEV = 19, "no such device";
    ENOTDIR = 20, "not a directory";
    EISDIR = 21, "is a directory";
    EINVAL = 22, "invalid argument";
    ENFILE = 23, "too many open files in the system";
    EMFILE = 24, "too many open files";
    ENOTTY = 25, "not a terminal";
    ETXTBSY = 26, "a program is run from the file";
    EFBIG = 27, "file too large";
    ENOSPC = 28, "no space left on device";
    ESPIPE = 29, "illegal seek";
    EROFS = 30, "read-only file system";
    EMLINK = 31, "too many links";
    EPIPE = 32, "broken pipe";
    EDOM = 33, "argument out of domain";
    ERANGE = 34, "result out of range";
    EDEADLK = 35, "resource deadlock would occur";
    ENAMETOOLONG = 36, "file name too long";
    ENOLCK = 37, "no locks available";
    ENOSYS = 38, "function not implemented";
    ENOTEMPTY = 39, "directory not empty";
    ELOOP = 40, "too many levels of symbolic links";
    EIDRM = 43, "identifier was removed";
    ENODATA = 61, "no such attribute";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large for its type";
    ELIBBAD = 80, "the dynamic linker is not an executable of this machine";
    ENOTSOCK = 88, "not a socket";
    EDESTADDRREQ = 89, "destination address required";
    EMSGSIZE = 90, "message too long";
    EPROTOTYPE = 91, "wrong protocol type for socket";
    ENOPROTOOPT = 92, "protocol option not available";
    EPROTONOSUPPORT = 93, "protocol not supported";
    ESOCKTNOSUPPORT = 94, "socket type not supported";
    EOPNOTSUPP = 95, "operation not supported";
    EAFNOSUPPORT = 97, "address family not supported";
    EADDRINUSE = 98, "address already in use";
    EADDRNOTAVAIL = 99, "cannot assign requested address";
    ENETDOWN = 100, "network is down";
    ENETUNREACH = 101, "network is unreachable";
    ECONNABORTED = 103, "connection aborted";
    ECONNRESET = 104, "connection reset by peer";
    ENOBUFS = 105, "no buffer space available";
    EISCONN = 106, "socket is connected";
    ENOTCONN = 107, "socket is not connected";
    ETOOMANYREFS = 109, "too many files in messages";
    ETIMEDOUT = 110, "connection timed out";
    ECONNREFUSED = 111, "connection refused";
    EHOSTUNREACH = 113, "no route to host";
    EALREADY = 114, "operation already in progress";
    EINPROGRESS = 115, "operation now in progress";
    ESTALE = 116, "stale file handle";
    ECANCELED = 125, "operation cancelled";
}

impl Errno {
    /// Returns the (positive) number.
    pub const fn number(self) -> u16 {
        self as u16
    }
}

impl core::fmt::Debug for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name())
    }
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.message())
    }
}

impl core::error::Error for Errno {}

/// Result of a call: a value with a meaning of its own, or an error.
pub type Result<T = usize> = core::result::Result<T, Errno>;

/// Encodes a result as the call returns it in `a0`.
///
/// A success that would look like an error (a value of at least -4095 as unsigned) cannot occur: lengths, descriptors
/// and addresses of the user half are far below; the caller asserts it in debug builds.
pub const fn encode(result: Result) -> usize {
    match result {
        Ok(value) => {
            debug_assert!(value < usize::MAX - 4095);
            value
        }
        Err(error) => (error as usize).wrapping_neg(),
    }
}

/// Decodes a result, the inverse of [`encode`]. An unknown error number reads as [`Errno::EIO`].
#[inline(always)]
pub const fn decode(register: usize) -> Result {
    if register > usize::MAX - 4095 { Err(decode_error(register)) } else { Ok(register) }
}

/// Looks up the number; out of line, because calls succeed most of the time.
#[cold]
const fn decode_error(register: usize) -> Errno {
    match Errno::from_number(register.wrapping_neg() as u16) {
        Some(error) => error,
        None => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_survives_the_register() {
        for &error in Errno::ALL {
            assert_eq!(decode(encode(Err(error))), Err(error));
            assert!(encode(Err(error)) > usize::MAX - 4095);
        }
    }

    #[test]
    fn values_survive_the_register() {
        for value in [0, 1, 4095, 0x3f_ffff_ffff] {
            assert_eq!(decode(encode(Ok(value))), Ok(value));
        }
    }
}
