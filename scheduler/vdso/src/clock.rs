//! The clock without a system call, under the names of Linux's vDSO: C libraries find it here.
//!
//! The kernel maps its global page, with the frequency of the `time` register and the time at its start, in front of
//! the image. The arithmetic is the kernel's, so that times from here and from calls are in one order. Clocks that the
//! register does not show, such as those of processor time, are left to the call.

use abi_queue::GlobalPage;
use core::sync::atomic::Ordering;

const NS_PER_SECOND: u64 = 1_000_000_000;

/// Numbers of the clocks (clock_gettime(2)): the time of day, and the time since the machine's start.
const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;
const MONOTONIC_RAW: u32 = 4;
const REALTIME_COARSE: u32 = 5;
const MONOTONIC_COARSE: u32 = 6;
const BOOTTIME: u32 = 7;

/// A time in seconds and nanoseconds, as `struct timespec` has it.
type Time = [u64; 2];

/// Returns the time of a number of ticks. Without a panic, even for a page that is not the kernel's.
#[inline(always)]
fn time_of(ticks: u64, rate: u64) -> Time {
    let (Some(seconds), Some(rest)) = (ticks.checked_div(rate), ticks.checked_rem(rate)) else { return [0; 2] };
    [seconds, rest.wrapping_mul(NS_PER_SECOND).checked_div(rate).unwrap_or(0)]
}

/// Returns the time of a clock; `None` for one that the register does not show.
#[inline(always)]
fn read(page: &GlobalPage, clock: u32, ticks: impl Fn() -> u64) -> Option<Time> {
    let since_start = || time_of(ticks(), page.ticks_per_second.load(Ordering::Relaxed));
    match clock {
        REALTIME | REALTIME_COARSE => {
            let [seconds, ns] = since_start();
            let [start, start_ns] = split(page.epoch_ns.load(Ordering::Relaxed));
            let (seconds, ns) = (seconds.wrapping_add(start), ns.wrapping_add(start_ns));
            let carry = u64::from(ns >= NS_PER_SECOND);
            Some([seconds.wrapping_add(carry), ns.wrapping_sub(carry * NS_PER_SECOND)])
        }
        MONOTONIC | MONOTONIC_RAW | MONOTONIC_COARSE | BOOTTIME => Some(since_start()),
        _ => None,
    }
}

/// Returns the shortest time between two values of these clocks.
fn resolution(page: &GlobalPage) -> u64 {
    let rate = page.ticks_per_second.load(Ordering::Relaxed);
    NS_PER_SECOND.wrapping_add(rate).wrapping_sub(1).checked_div(rate).unwrap_or(0)
}

/// Splits a time into seconds and what is left.
fn split(ns: u64) -> Time {
    [ns / NS_PER_SECOND, ns % NS_PER_SECOND]
}

#[cfg(all(target_os = "none", target_arch = "riscv64"))]
mod exports {
    use core::arch::asm;

    use super::*;

    const CLOCK_GETTIME: usize = 113;
    const CLOCK_GETRES: usize = 114;

    /// Returns the page in front of the image.
    fn page() -> &'static GlobalPage {
        let image: *const u8;
        // SAFETY: takes an address.
        unsafe { asm!("lla {}, __ehdr_start", out(reg) image, options(pure, nomem, nostack)) };
        // SAFETY: the kernel maps its global page there before a program begins, and every word of it is atomic. A
        // program that maps something else there changes its own clock.
        unsafe { &*image.wrapping_sub(size_of::<GlobalPage>()).cast() }
    }

    fn ticks() -> u64 {
        let ticks;
        // SAFETY: reads a counter that user mode may read.
        unsafe { asm!("rdtime {}", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }

    /// Returns the clock, of which the compiler then knows nothing: it would choose by one table between a clock that
    /// is compared first and all others.
    fn unknown(clock: u32) -> u32 {
        let mut clock = clock;
        // SAFETY: does nothing.
        unsafe { asm!("/* {} */", inout(reg) clock, options(pure, nomem, nostack, preserves_flags)) };
        clock
    }

    /// Makes the call itself.
    fn call(number: usize, clock: u32, time: *mut Time) -> i32 {
        let result: usize;
        // SAFETY: the kernel checks the address. It preserves every register but a0.
        unsafe {
            asm!("ecall", in("a7") number, inlateout("a0") clock as usize => result, in("a1") time, options(nostack))
        };
        result as i32
    }

    /// `clock_gettime`.
    ///
    /// # Safety
    /// `time` must be a `struct timespec` of the caller's.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn __vdso_clock_gettime(clock: u32, time: *mut Time) -> i32 {
        // The clock that programs ask for most.
        let now = if clock == MONOTONIC { read(page(), clock, ticks) } else { read(page(), unknown(clock), ticks) };
        let Some(now) = now else { return call(CLOCK_GETTIME, clock, time) };
        // SAFETY: the caller's promise.
        unsafe { time.write(now) };
        0
    }

    /// `clock_getres`.
    ///
    /// # Safety
    /// `time` must be a `struct timespec` of the caller's, or null.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn __vdso_clock_getres(clock: u32, time: *mut Time) -> i32 {
        if read(page(), clock, || 0).is_none() {
            return call(CLOCK_GETRES, clock, time);
        }
        if !time.is_null() {
            // SAFETY: the caller's promise.
            unsafe { time.write(split(resolution(page()))) };
        }
        0
    }

    /// `gettimeofday`. The zone is Greenwich's.
    ///
    /// # Safety
    /// `time` must be a `struct timeval` of the caller's, and `zone` a `struct timezone`, or null.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn __vdso_gettimeofday(time: *mut Time, zone: *mut [u32; 2]) -> i32 {
        if !time.is_null() {
            let [seconds, ns] = read(page(), REALTIME, ticks).unwrap_or_default();
            // SAFETY: the caller's promise.
            unsafe { time.write([seconds, ns / 1000]) };
        }
        if !zone.is_null() {
            // SAFETY: the caller's promise.
            unsafe { zone.write([0; 2]) };
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(rate: u64, epoch_ns: u64) -> GlobalPage {
        // SAFETY: the page consists of atomic words, for which zeros are values.
        let page: GlobalPage = unsafe { core::mem::zeroed() };
        page.ticks_per_second.store(rate, Ordering::Relaxed);
        page.epoch_ns.store(epoch_ns, Ordering::Relaxed);
        page
    }

    #[test]
    fn a_page_without_a_frequency_and_unknown_clocks_do_no_harm() {
        let empty = page(0, 5);
        assert_eq!(read(&empty, REALTIME, || u64::MAX), Some([0, 5]));
        assert_eq!(resolution(&empty), 0);
        for clock in [2, 3, 8, 9, 10, 11, u32::MAX] {
            assert_eq!(read(&empty, clock, || panic!("no clock is read")), None);
        }
    }

    #[test]
    fn times_are_those_of_the_register() {
        let known = page(10_000_000, 1_700_000_000_000_000_123);
        for clock in [MONOTONIC, MONOTONIC_RAW, MONOTONIC_COARSE, BOOTTIME] {
            assert_eq!(read(&known, clock, || 12_345_678_901), Some([1234, 567_890_100]));
        }
        for clock in [REALTIME, REALTIME_COARSE] {
            assert_eq!(read(&known, clock, || 12_345_678_901), Some([1_700_001_234, 567_890_223]));
            // The nanoseconds of both are a second together.
            let known = page(10_000_000, 600_000_000);
            assert_eq!(read(&known, clock, || 4_000_000), Some([1, 0]));
            assert_eq!(read(&known, clock, || 3_999_999), Some([0, 999_999_900]));
        }
        assert_eq!(resolution(&known), 100);
        // A frequency that does not divide a second, and a register that has run for centuries.
        let odd = page(32_768, 0);
        let ticks = 32_768 * 10_000_000_000 + 1;
        assert_eq!(read(&odd, MONOTONIC, || ticks), Some([10_000_000_000, 30_517]));
        assert_eq!(resolution(&odd), 30_518);
    }
}
