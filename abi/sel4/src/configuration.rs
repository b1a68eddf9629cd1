//! seL4's build configuration, as compiled into user programs, and further constants on which they rely.
//!
//! The names in brackets are those of seL4's configuration, for comparison.

/// Number of priorities; the largest number is the most important (`CONFIG_NUM_PRIORITIES`).
pub const PRIORITIES: usize = 256;
/// Most important priority, which the initial thread has.
pub const MAXIMUM_PRIORITY: usize = PRIORITIES - 1;
/// Maximum number of objects that one retype makes (`CONFIG_RETYPE_FAN_OUT_LIMIT`).
pub const RETYPE_LIMIT: usize = 256;
/// Slots of the initial CNode, as a power of two, unless the kernel is told otherwise (`CONFIG_ROOT_CNODE_SIZE_BITS`).
pub const ROOT_CNODE_SIZE_BITS: usize = 13;
/// The untyped capabilities that boot information describes at most, unless the kernel is told otherwise
/// (`CONFIG_MAX_NUM_BOOTINFO_UNTYPED_CAPS`).
pub const BOOT_UNTYPEDS: usize = 230;
/// The most that it can be told: those that fit into the page.
pub const MAXIMUM_BOOT_UNTYPEDS: usize = 245;
/// Levels of page tables (`CONFIG_PT_LEVELS`): Sv39.
pub const PAGE_TABLE_LEVELS: usize = 3;
/// Scheduling domains, unless the kernel is told otherwise (`CONFIG_NUM_DOMAINS`).
pub const DOMAINS: usize = 1;
/// The most scheduling domains.
pub const MAXIMUM_DOMAINS: usize = 16;
/// Entries of the schedule of domains (`CONFIG_NUM_DOMAIN_SCHEDULES`); the last one always ends it.
pub const DOMAIN_SCHEDULE_LENGTH: usize = 100;
/// Bits of the duration of an entry of the schedule of domains.
pub const DOMAIN_DURATION_BITS: usize = 56;
/// Milliseconds from one timer interrupt to the next, unless the kernel is told otherwise (`CONFIG_TIMER_TICK_MS`).
pub const TICK_MILLISECONDS: usize = 2;
/// Timer interrupts in the turn of a thread, unless the kernel is told otherwise (`CONFIG_TIME_SLICE`).
pub const TICKS_IN_A_TURN: usize = 5;
/// The word of a message at which the text of an error begins, in kernels that give one (`DEBUG_MESSAGE_START`).
pub const ERROR_TEXT_START: usize = 6;
/// Words of the message that the text takes at most, with the NUL that ends it (`DEBUG_MESSAGE_MAXLEN`).
pub const ERROR_TEXT_WORDS: usize = 50;
/// First physical address that is not given out as device memory (`CONFIG_PADDR_USER_DEVICE_TOP`).
pub const DEVICE_TOP: u64 = 1 << 39;
/// First virtual address that a program cannot map (`seL4_UserTop`).
pub const USER_TOP: u64 = 0x3f_ffff_f000;
