//! Boot: from the firmware's entry point to the kernel's main function.
//!
//! The first hart arrives at `_start` with paging off, its hart id in `a0` and the physical address of the device tree
//! in `a1` (SBI specification, and the Linux boot protocol that every firmware follows). The code there is
//! position-independent: it addresses everything relative to the program counter, clears `.bss`, and builds a table
//! that maps only the image, readable, writable and executable, for the few instructions until the real table exists.
//! It jumps to the upper half without an identity mapping: the fetch after writing `satp` faults, and the trap vector
//! already holds the address in the upper half.
//!
//! Other harts are started by [`start_hart`] and take the same jump with the finished table.
//!
//! **ARRIVES-ONCE**: an arriving hart is identified by its hart id alone. Secondary harts do not all enter at
//! `_start_hart`: firmware without hart management releases all harts at `_start`, and OpenSBI before 1.2 marks a hart
//! as started before it stores the start address, so that a hart that is awake just then takes a stale address, a stale
//! argument, or both, which are those of `_start`. So the first hart that swaps [`FIRST`] boots, and every other hart,
//! at either entry point, waits until [`EXPECTED`] contains its hart id, and removes the id. A hart accesses only these
//! two variables before it is admitted; they are in `.data`, since `.bss` is cleared while harts may be waiting. Before
//! admission a hart touches neither the stacks nor any other memory; after it, the hart's area, its stack and the page
//! table are ready. Nothing depends on the entry point, on the arguments other than the hart id, or on the firmware's
//! answer to the hart that made the start call.

use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::mem::{MaybeUninit, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use hal_api::{BootInformation, MAXIMUM_HARTS};

use crate::csr::{self, clear_csr, write_csr};
use crate::hart::{self, HartArea};
use crate::layout::{DEVICE_WINDOW, DIRECT_MAP, DIRECT_MAP_SIZE};
use crate::tables::{MapError, Permission, Table, Tables};

/// Sv39 in the mode field of `satp`.
const SV39: u64 = 8 << 60;

global_asm!(
    r#"
    .section .text.entry, "ax"
    # With link-time optimisation the assembler does not know the target's extensions. A machine without `pause`
    # executes it as a fence without effect.
    .option push
    .option arch, +a, +zihintpause
    .globl _start
_start:
    # The header by which boot loaders know an image, start it and keep its memory free (Linux's documentation,
    # arch/riscv/boot-image-header.rst); its first word is the first instruction.
    .option push
    .option norvc
    j       5f
    .word   0
    .option pop
    .dword  0x200000
    .dword  __image_end - __image_start
    .dword  0
    .word   2
    .word   0
    .dword  0
    .ascii  "RISCV\0\0\0"
    .ascii  "RSC\5"
    .word   0
5:  csrw    sie, zero
    # Only the first hart boots. Relaxed: no other hart has written anything yet.
    lla     t0, {first}
    li      t1, 1
    amoswap.w t0, t1, (t0)
    bnez    t0, _start_hart
    mv      s1, a0
    mv      s2, a1
    lla     s0, __image_start

    # The boot table has only leaves of 2 MiB, so the image must lie at a multiple of that. If it does not, the only way
    # out is a firmware call that ends the machine as failed (SBI system reset: shutdown, system failure).
    slli    t0, s0, 43
    beqz    t0, 1f
    li      a7, 0x53525354
    li      a6, 0
    li      a0, 0
    li      a1, 1
    ecall
0:  wfi
    j       0b

1:  lla     t0, __bss_start
    lla     t1, __bss_end
2:  sd      zero, 0(t0)
    addi    t0, t0, 8
    bltu    t0, t1, 2b

    # Entries 1 to 511 of the second-to-last gigabyte map the image, at 0xffffffff80200000 and up.
    lla     t0, {boot_tables}
    li      t4, 4096
    add     t5, t0, t4
    srli    t2, s0, 12
    slli    t2, t2, 10
    ori     t2, t2, 0xef
    li      t3, 511
    li      t4, 0x80000
    mv      t1, t5
3:  addi    t1, t1, 8
    sd      t2, 0(t1)
    add     t2, t2, t4
    addi    t3, t3, -1
    bnez    t3, 3b
    srli    t2, t5, 12
    slli    t2, t2, 10
    ori     t2, t2, 1
    li      t1, 510 * 8
    add     t1, t1, t0
    sd      t2, 0(t1)
    srli    t0, t0, 12

    # t0: frame of the root table. The next fetch faults and continues at 4, in the upper half.
    ld      t2, {image_virtual_pointer}
    sub     t2, t2, s0
    lla     t1, 4f
    add     t1, t1, t2
    csrw    stvec, t1
    li      t1, {sv39}
    or      t0, t0, t1
    sfence.vma
    csrw    satp, t0
    .balign 4
4:  lla     sp, {stacks} + {first_stack_top}
    lla     tp, {harts} + {first_area}
    mv      a0, s1
    mv      a1, s2
    mv      a2, s0
    mv      s0, zero
    mv      ra, zero
    call    {boot_main}

    # Entry point for a loader that has placed the image at its link address and has turned paging on (seL4's
    # elfloader): a0 to a3 describe a program's location, a4 and a5 the device tree's; a6 is the hart id, a7 is 0 for
    # the first hart. All addresses are virtual already, so the same code admits the other harts.
    .balign 4
    .globl _start_loaded
_start_loaded:
    csrw    sie, zero
    lla     t0, {loader}
    bnez    a7, 2f
    lla     t1, {first}
    li      t2, 1
    sw      t2, 0(t1)
    lla     t1, {loaded}
    sw      t2, 0(t1)
    sd      a0, 0(t0)
    sd      a1, 8(t0)
    sd      a2, 16(t0)
    sd      a3, 24(t0)
    lla     sp, {stacks} + {first_stack_top}
    lla     tp, {harts} + {first_area}
    mv      a0, a6
    mv      a1, a4
    ld      a2, {image_physical_pointer}
    mv      s0, zero
    mv      ra, zero
    call    {boot_main}
2:  mv      a0, a6
    j       _start_hart

    # A secondary hart: a0 is its hart id, and nothing else counts (ARRIVES-ONCE). It waits until its id is in the
    # table, and removes the id. The swap is harmless if the first hart has just given up, which swaps in the same
    # value. Acquire: everything prepared for this hart is visible with its id.
    .balign 4
    .globl _start_hart
_start_hart:
    csrw    sie, zero
    li      t3, {nobody}
    li      t4, {area_size}
6:  lla     t0, {expected}
    lla     tp, {harts} + {first_area}
    li      t1, {maximum_harts}
7:  ld      t2, 0(t0)
    bne     t2, a0, 8f
    amoswap.d.aq t2, t3, (t0)
    beq     t2, a0, 9f
8:  addi    t0, t0, 8
    add     tp, tp, t4
    addi    t1, t1, -1
    bnez    t1, 7b
    pause
    j       6b

    # tp: physical address of its area. The next fetch faults and continues at 5, in the upper half.
9:  lla     t3, __image_start
    ld      t2, {image_virtual_pointer}
    sub     t2, t2, t3
    add     tp, tp, t2
    ld      t0, {satp}
    lla     t1, 5f
    add     t1, t1, t2
    csrw    stvec, t1
    sfence.vma
    csrw    satp, t0
    .balign 4
5:  ld      sp, {stack_top}(tp)
    mv      s0, zero
    mv      ra, zero
    call    {hart_main}
    .option pop
    "#,
    image_virtual_pointer = sym IMAGE_VIRTUAL,
    image_physical_pointer = sym IMAGE_PHYSICAL,
    loader = sym LOADER,
    loaded = sym LOADED,
    sv39 = const SV39,
    boot_tables = sym BOOT_TABLES,
    stacks = sym hart::HART_STACKS,
    first_stack_top = const size_of::<hart::Stack>(),
    harts = sym hart::HARTS,
    first_area = const hart::HartAreas::BEFORE,
    first = sym FIRST,
    expected = sym EXPECTED,
    nobody = const NOBODY as i64,
    area_size = const size_of::<HartArea>(),
    maximum_harts = const MAXIMUM_HARTS,
    satp = sym KERNEL_SATP,
    stack_top = const hart::OFFSET_STACK_TOP,
    boot_main = sym boot_main,
    hart_main = sym hart_main,
);

unsafe extern "C" {
    static __image_physical: u8;
    static __image_start: u8;
    static __image_end: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __data_start: u8;
    static __vdso_start: u8;
    static __vdso_end: u8;
    fn _start_hart();
}

unsafe extern "Rust" {
    safe fn kernel_main(boot: &'static BootInformation) -> !;
    safe fn kernel_hart_main(hart: usize) -> !;
}

/// Virtual link address of the image, as a word that position-independent code can load.
static IMAGE_VIRTUAL: ImageVirtual = ImageVirtual(&raw const __image_start);

/// Physical link address of the image.
static IMAGE_PHYSICAL: ImageVirtual = ImageVirtual(&raw const __image_physical);

/// Whether a loader that turned paging on has entered the kernel: 1, else 0.
// SAFETY: as for `FIRST`.
#[unsafe(link_section = ".data.loaded")]
static LOADED: AtomicU32 = AtomicU32::new(0);

/// Registers a0 to a3 as passed by that loader.
static LOADER: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

#[repr(transparent)]
struct ImageVirtual(*const u8);
// SAFETY: the address is a constant.
unsafe impl Sync for ImageVirtual {}

/// Whether a hart has begun to boot the machine: 1, else 0.
// SAFETY: the section holds writable data like any other of that name; it only must not be `.bss`.
#[unsafe(link_section = ".data.first")]
static FIRST: AtomicU32 = AtomicU32::new(0);

/// A value that is no hart's id.
const NOBODY: u64 = u64::MAX;

/// Ids of the harts that may be admitted, at their dense indices. The first hart stores an id before it starts that
/// hart. The id is removed by the started hart as it arrives, or by the first hart as it gives up waiting; the removal
/// decides between the two.
// SAFETY: as above.
#[unsafe(link_section = ".data.expected")]
static EXPECTED: [AtomicU64; MAXIMUM_HARTS] = [const { AtomicU64::new(NOBODY) }; MAXIMUM_HARTS];

/// Value of `satp` for a starting hart.
static KERNEL_SATP: AtomicU64 = AtomicU64::new(0);

/// Virtual minus physical address of the image.
static IMAGE_OFFSET: AtomicU64 = AtomicU64::new(0);

/// Root and middle table with which the first hart enters the upper half.
static BOOT_TABLES: SingleThreaded<[Table; 2]> = SingleThreaded(UnsafeCell::new([Table::EMPTY; 2]));

/// Number of frames for the kernel's page table: the image needs about ten, each memory range a few. A kernel that
/// makes do with one hart is to be small.
const POOL_FRAMES: usize = if cfg!(feature = "several-harts") { 64 } else { 24 };
static POOL: SingleThreaded<[Table; POOL_FRAMES]> = SingleThreaded(UnsafeCell::new([Table::EMPTY; POOL_FRAMES]));
static POOL_USED: SingleThreaded<usize> = SingleThreaded(UnsafeCell::new(0));

static BOOT_INFORMATION: SingleThreaded<MaybeUninit<BootInformation>> =
    SingleThreaded(UnsafeCell::new(MaybeUninit::uninit()));

/// Data that only the first hart touches, before any other hart runs.
#[repr(transparent)]
struct SingleThreaded<T>(UnsafeCell<T>);
// SAFETY: each function that accesses the contents states why no other hart runs at that moment.
unsafe impl<T> Sync for SingleThreaded<T> {}

/// Starts the kernel on the first hart: the first Rust code, in the upper half.
extern "C" fn boot_main(hart_id: u64, device_tree: u64, load_address: u64) -> ! {
    hart::prepare(0, hart_id);
    let (start, end) = image();
    let offset = start as u64 - load_address;
    IMAGE_OFFSET.store(offset, Relaxed);

    let built = with_tables(|tables| {
        map_image(tables, offset)?;
        // The location of memory is unknown until the platform has read the device tree; the platform replaces these
        // mappings.
        tables.map(DIRECT_MAP, 0, DIRECT_MAP_SIZE, Permission::ReadWrite)?;
        tables.map(DEVICE_WINDOW, 0, DIRECT_MAP_SIZE, Permission::ReadWrite)
    });
    assert_eq!(built, Ok(()), "the kernel's page table does not fit into its pool");
    KERNEL_SATP.store(SV39 | kernel_root_ppn(), Relaxed);
    prepare_hart(&hart::HARTS[0]);

    let information = BootInformation {
        device_tree: device_tree_bytes(device_tree),
        device_tree_address: device_tree,
        boot_hart_id: hart_id,
        image: (load_address, load_address + (end - start) as u64),
    };
    // SAFETY: only the first hart runs, and it runs this function once; from here on the contents are only read.
    let information = unsafe { (*BOOT_INFORMATION.0.get()).write(information) };
    kernel_main(information)
}

/// Starts the kernel on every other hart: the first Rust code there.
extern "C" fn hart_main() -> ! {
    let area = hart::this();
    prepare_hart(area);
    kernel_hart_main(area.index.load(Relaxed))
}

/// Sets the registers of this hart as the register contract requires.
fn prepare_hart(area: &HartArea) {
    let satp = KERNEL_SATP.load(Relaxed);
    area.satp.store(satp, Relaxed);
    // SAFETY: the table maps the whole image as it is linked, so code, stack and data stay where they are; the vector
    // handles every trap; and all changed state is this hart's.
    unsafe {
        core::arch::asm!("csrw satp, {}", "sfence.vma", in(reg) satp, options(nostack));
        write_csr!(csr::STVEC, crate::trap::vector());
        core::arch::asm!("csrw sscratch, zero", options(nostack));
        // No interrupts in the kernel, no access to user pages, floating point off, next return is to user mode.
        clear_csr!(csr::SSTATUS, crate::trap::STATUS_CLEARED);
        write_csr!(csr::SIE, csr::SOFTWARE | csr::TIMER | csr::EXTERNAL);
        write_csr!(csr::SCOUNTEREN, csr::USER_COUNTERS);
    }
}

fn map_image(tables: &mut Tables, offset: u64) -> Result<(), MapError> {
    let address = |symbol: *const u8| symbol as u64;
    let start = address(&raw const __image_start);
    let (text_end, rodata_end) = (address(&raw const __text_end), address(&raw const __rodata_end));
    tables.map(start, start - offset, text_end - start, Permission::ReadExecute)?;
    tables.map(text_end, text_end - offset, rodata_end - text_end, Permission::Read)?;
    let mut at = address(&raw const __data_start);
    for index in 0..hart::STACKS {
        let (guard, guard_end) = hart::guard(index);
        tables.map(at, at - offset, guard as u64 - at, Permission::ReadWrite)?;
        at = guard_end as u64;
    }
    tables.map(at, at - offset, address(&raw const __image_end) - at, Permission::ReadWrite)
}

/// Changes the kernel's page table. Only the first hart may call this, before any other hart is started.
pub fn with_tables<R>(change: impl FnOnce(&mut Tables) -> R) -> R {
    let physical = image_to_physical(POOL.0.get() as usize);
    // SAFETY: called by the first hart alone before other harts run (`configure` and `boot_main`), and not recursively.
    // The machine's walker reads the same memory, which is ordered by the fence that follows a change.
    let (frames, used) = unsafe { (&mut *POOL.0.get(), &mut *POOL_USED.0.get()) };
    change(&mut Tables::new(frames, used, physical))
}

/// Returns the frame number of the root of the kernel's page table.
pub fn kernel_root_ppn() -> u64 {
    image_to_physical(POOL.0.get() as usize) >> 12
}

/// Returns the device tree in the direct map; empty if the firmware passed none.
fn device_tree_bytes(physical: u64) -> &'static [u8] {
    /// First word of the header, big-endian. The second word is the size of the whole tree in bytes, big-endian too.
    const MAGIC: u32 = 0xd00d_feed;
    /// Upper limit of the size, far above any device tree's; the size is read from unvalidated memory.
    const LIMIT: usize = 4 << 20;
    if physical == 0 || !physical.is_multiple_of(8) || physical >= DIRECT_MAP_SIZE - LIMIT as u64 {
        return &[];
    }
    let start = (DIRECT_MAP + physical) as *const u32;
    // SAFETY: the firmware's contract is that a device tree, or at least memory, is there; it is aligned, mapped, below
    // the limit, and never written, because the platform reserves it.
    unsafe {
        let size = u32::from_be(start.add(1).read()) as usize;
        if u32::from_be(start.read()) != MAGIC || size > LIMIT {
            return &[];
        }
        core::slice::from_raw_parts(start.cast(), size)
    }
}

/// Location of a program that a loader placed in memory before it entered the kernel, as seL4's elfloader does.
#[derive(Clone, Copy, Debug)]
pub struct LoaderArguments {
    /// Physical address of the program's first page.
    pub image_start: u64,
    /// Physical address behind the program's last page.
    pub image_end: u64,
    /// Physical minus virtual address.
    pub physical_offset: u64,
    /// Virtual address of the program's entry point.
    pub entry: u64,
}

/// Returns the loader's arguments; `None` if firmware entered the kernel directly.
pub fn loader_arguments() -> Option<LoaderArguments> {
    let [image_start, image_end, physical_offset, entry] = [0, 1, 2, 3].map(|index: usize| LOADER[index].load(Relaxed));
    (LOADED.load(Relaxed) != 0).then_some(LoaderArguments { image_start, image_end, physical_offset, entry })
}

/// Returns the virtual addresses of the kernel image: first byte, and first byte behind.
pub fn image() -> (usize, usize) {
    (&raw const __image_start as usize, &raw const __image_end as usize)
}

/// Returns the physical addresses of the image's pages that must not be written: text and constants.
pub fn constant_image() -> (u64, u64) {
    (image_to_physical(&raw const __image_start as usize), image_to_physical(&raw const __rodata_end as usize))
}

/// Returns whether an address is in the kernel's text.
pub fn is_text(address: usize) -> bool {
    (&raw const __image_start as usize..&raw const __text_end as usize).contains(&address)
}

/// Returns the physical address of something in the kernel image.
pub fn image_to_physical(address: usize) -> u64 {
    address as u64 - IMAGE_OFFSET.load(Relaxed)
}

/// Returns the physical addresses of the pages that hold the section `.vdso`: first byte, and first byte behind.
pub fn vdso_pages() -> (u64, u64) {
    (image_to_physical(&raw const __vdso_start as usize), image_to_physical(&raw const __vdso_end as usize))
}

/// Requests the start of the hart with this dense index from the firmware, and admits the hart, which then enters the
/// kernel's function for secondary harts. [`has_arrived`] tells whether it has arrived. An error of the firmware is not
/// conclusive, since the hart may be on its way already.
///
/// # Errors
/// The firmware's error number.
pub fn start_hart(index: usize, hart_id: u64) -> Result<(), isize> {
    hart::prepare(index, hart_id);
    // Release: a hart that sees its id sees everything prepared for it, the page table included.
    EXPECTED[index].store(hart_id, Release);
    let entry = image_to_physical(_start_hart as *const () as usize);
    let result = sbi_rt::hart_start(hart_id as usize, entry as usize, 0);
    if result.error == 0 { Ok(()) } else { Err(result.error as isize) }
}

/// Returns whether the hart that [`start_hart`] started has arrived.
pub fn has_arrived(index: usize) -> bool {
    EXPECTED[index].load(Acquire) == NOBODY
}

/// Gives up waiting for the hart that [`start_hart`] started: it is not admitted any more unless it is started again.
/// Returns `false` if it has arrived after all.
pub fn give_up_hart(index: usize) -> bool {
    EXPECTED[index].swap(NOBODY, AcqRel) != NOBODY
}
