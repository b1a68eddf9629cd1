//! Page tables, pages and address spaces.

use sel4::abi::Invocation;
use sel4::abi::boot::slot;
use sel4::abi::configuration::USER_TOP;
use sel4::capability::{AsidControl, AsidPool, Page, PageTable, Slot, Untyped, initial};
use sel4::raw::invoke;
use sel4::{Failure, ObjectType, Rights};

use crate::harness::{Bench, Outcome};
use crate::{check, equal, memory, refused};

/// First address for the mappings of this file's tests.
const ADDRESS: u64 = 0x18_0000_0000;

fn page(bench: &mut Bench<'_>) -> Result<Page, Failure> {
    bench.allocator.object(ObjectType::Page).map(Page::from_pointer)
}

fn table(bench: &mut Bench<'_>) -> Result<PageTable, Failure> {
    bench.allocator.object(ObjectType::PageTable).map(PageTable::from_pointer)
}

/// Makes an address space.
fn space(bench: &mut Bench<'_>) -> Result<PageTable, Failure> {
    let table = table(bench)?;
    initial::ASID_POOL.assign(table)?;
    Ok(table)
}

pub fn tables_are_mapped_from_the_top(bench: &mut Bench<'_>) -> Outcome {
    let space = space(bench)?;
    let page = page(bench)?;
    let (first, second, third) = (table(bench)?, table(bench)?, table(bench)?);
    let failure = refused!(page.map(space, ADDRESS, Rights::READ_WRITE, 0), FailedLookup);
    equal!(failure.details[..4], [0, 2, 30, 0]);
    first.map(space, ADDRESS, 0)?;
    let failure = refused!(page.map(space, ADDRESS, Rights::READ_WRITE, 0), FailedLookup);
    equal!(failure.details[..4], [0, 2, 21, 0]);
    refused!(first.map(space, ADDRESS, 0), InvalidCapability);
    second.map(space, ADDRESS, 0)?;
    refused!(third.map(space, ADDRESS, 0), DeleteFirst);
    page.map(space, ADDRESS, Rights::READ_WRITE, 0)?;
    refused!(third.map(space, ADDRESS, 0), DeleteFirst);
    // A table that is unmapped takes the tables below it out of the address space.
    first.unmap()?;
    first.unmap()?;
    third.map(space, ADDRESS, 0)?;
    third.unmap()?;
    Ok(())
}

pub fn tables_go_only_where_programs_may(bench: &mut Bench<'_>) -> Outcome {
    let table = table(bench)?;
    let page = page(bench)?;
    for address in [USER_TOP, 0x40_0000_0000, 0xffff_ffff_8020_0000, !0xfff] {
        refused!(table.map(initial::ADDRESS_SPACE, address, 0), InvalidArgument);
        refused!(page.map(initial::ADDRESS_SPACE, address, Rights::READ_WRITE, 0), InvalidArgument);
    }
    // The target of a mapping has to be an address space.
    let none = PageTable::from_pointer(initial::CNODE.pointer());
    equal!(refused!(table.map(none, ADDRESS, 0), InvalidCapability).details[0], 1);
    equal!(refused!(page.map(none, ADDRESS, Rights::READ_WRITE, 0), InvalidCapability).details[0], 1);
    let unassigned = self::table(bench)?;
    refused!(table.map(unassigned, ADDRESS, 0), InvalidCapability);
    refused!(page.map(unassigned, ADDRESS, Rights::READ_WRITE, 0), InvalidCapability);
    refused!(invoke(table.pointer(), Invocation::PageTableMap, &[ADDRESS, 0], &[]), TruncatedMessage);
    refused!(
        invoke(table.pointer(), Invocation::PageTableMap, &[ADDRESS], &[slot::ADDRESS_SPACE as u64]),
        TruncatedMessage
    );
    refused!(invoke(page.pointer(), Invocation::PageMap, &[ADDRESS, 3, 0], &[]), TruncatedMessage);
    refused!(
        invoke(page.pointer(), Invocation::PageMap, &[ADDRESS, 3], &[slot::ADDRESS_SPACE as u64]),
        TruncatedMessage
    );
    Ok(())
}

pub fn tables_that_are_in_use_stay(bench: &mut Bench<'_>) -> Outcome {
    refused!(initial::ADDRESS_SPACE.unmap(), RevokeFirst);
    let table = table(bench)?;
    table.unmap()?;
    table.map(initial::ADDRESS_SPACE, ADDRESS, 0)?;
    let copy = bench.slot()?;
    copy.copy_from(Slot::own(table.pointer()), Rights::ALL)?;
    refused!(table.unmap(), RevokeFirst);
    refused!(PageTable::from_pointer(copy.index).unmap(), RevokeFirst);
    copy.delete()?;
    table.unmap()?;
    // A table without a place in an address space cannot be copied.
    refused!(copy.copy_from(Slot::own(table.pointer()), Rights::ALL), IllegalOperation);
    Ok(())
}

pub fn pages_show_the_same_memory_twice(bench: &mut Bench<'_>) -> Outcome {
    let page = page(bench)?;
    let copy = bench.slot()?;
    copy.copy_from(Slot::own(page.pointer()), Rights::ALL)?;
    let copy = Page::from_pointer(copy.index);
    sel4::mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, page, ADDRESS, Rights::READ_WRITE, 0)?;
    sel4::mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, copy, ADDRESS + 0x4000_0000, Rights::READ, 0)?;
    memory::write(ADDRESS + 16, 0x1234);
    equal!(memory::read(ADDRESS + 0x4000_0010), 0x1234);
    equal!(page.physical_address()?, copy.physical_address()?);
    check!(page.physical_address()?.is_multiple_of(4096));
    // A second mapping at the same place changes the rights; one elsewhere is refused.
    copy.map(initial::ADDRESS_SPACE, ADDRESS + 0x4000_0000, Rights::READ_WRITE, 0)?;
    memory::write(ADDRESS + 0x4000_0010, 5);
    equal!(memory::read(ADDRESS + 16), 5);
    equal!(
        refused!(page.map(initial::ADDRESS_SPACE, ADDRESS + 0x1000, Rights::READ_WRITE, 0), InvalidArgument).details[0],
        0
    );
    let other = space(bench)?;
    refused!(page.map(other, ADDRESS, Rights::READ_WRITE, 0), FailedLookup);
    for _ in 0..2 {
        table(bench)?.map(other, ADDRESS, 0)?;
    }
    equal!(refused!(page.map(other, ADDRESS, Rights::READ_WRITE, 0), InvalidCapability).details[0], 1);
    // Another page is refused at this place.
    let second = self::page(bench)?;
    refused!(second.map(initial::ADDRESS_SPACE, ADDRESS, Rights::READ_WRITE, 0), DeleteFirst);
    page.unmap()?;
    page.unmap()?;
    second.map(initial::ADDRESS_SPACE, ADDRESS, Rights::READ_WRITE, 0)?;
    equal!(memory::read(ADDRESS + 16), 0);
    page.map(initial::ADDRESS_SPACE, ADDRESS + 0x1000, Rights::READ_WRITE, 0)?;
    equal!(memory::read(ADDRESS + 0x1010), 5);
    Ok(())
}

pub fn pages_of_all_sizes_are_aligned(bench: &mut Bench<'_>) -> Outcome {
    let large = Page::from_pointer(bench.allocator.object(ObjectType::MegaPage)?);
    let small = page(bench)?;
    refused!(large.map(initial::ADDRESS_SPACE, ADDRESS + 0x1000, Rights::READ_WRITE, 0), AlignmentError);
    refused!(small.map(initial::ADDRESS_SPACE, ADDRESS + 8, Rights::READ_WRITE, 0), AlignmentError);
    let first = table(bench)?;
    first.map(initial::ADDRESS_SPACE, ADDRESS, 0)?;
    large.map(initial::ADDRESS_SPACE, ADDRESS, Rights::READ_WRITE, 0)?;
    memory::write(ADDRESS, 1);
    memory::write(ADDRESS + 0x1f_fff8, 2);
    equal!((memory::read(ADDRESS), memory::read(ADDRESS + 0x1f_fff8)), (1, 2));
    check!(large.physical_address()?.is_multiple_of(2 << 20));
    // Neither a page nor a table can be mapped in place of a large page.
    refused!(small.map(initial::ADDRESS_SPACE, ADDRESS + 0x1000, Rights::READ_WRITE, 0), FailedLookup);
    refused!(table(bench)?.map(initial::ADDRESS_SPACE, ADDRESS, 0), DeleteFirst);
    large.unmap()?;
    // And no large page in place of a table.
    let second = table(bench)?;
    second.map(initial::ADDRESS_SPACE, ADDRESS, 0)?;
    refused!(large.map(initial::ADDRESS_SPACE, ADDRESS, Rights::READ_WRITE, 0), FailedLookup);
    Ok(())
}

pub fn deleting_a_page_unmaps_it(bench: &mut Bench<'_>) -> Outcome {
    let first = page(bench)?;
    sel4::mapping::map(&mut bench.allocator, initial::ADDRESS_SPACE, first, ADDRESS, Rights::READ_WRITE, 0)?;
    memory::write(ADDRESS, 7);
    Slot::own(first.pointer()).delete()?;
    let second = page(bench)?;
    second.map(initial::ADDRESS_SPACE, ADDRESS, Rights::READ_WRITE, 0)?;
    equal!(memory::read(ADDRESS), 0);
    Ok(())
}

pub fn address_spaces_are_assigned_once(bench: &mut Bench<'_>) -> Outcome {
    let table = table(bench)?;
    initial::ASID_POOL.assign(table)?;
    equal!(refused!(initial::ASID_POOL.assign(table), InvalidCapability).details[0], 1);
    equal!(refused!(initial::ASID_POOL.assign(initial::ADDRESS_SPACE), InvalidCapability).details[0], 1);
    refused!(initial::ASID_POOL.assign(PageTable::from_pointer(initial::CNODE.pointer())), InvalidCapability);
    refused!(invoke(slot::ASID_POOL as u64, Invocation::AsidPoolAssign, &[], &[]), TruncatedMessage);
    let mapped = self::table(bench)?;
    mapped.map(initial::ADDRESS_SPACE, ADDRESS, 0)?;
    refused!(initial::ASID_POOL.assign(mapped), InvalidCapability);
    // An address space is no table of another.
    refused!(table.map(initial::ADDRESS_SPACE, ADDRESS, 0), InvalidCapability);
    Ok(())
}

pub fn pools_are_made_of_a_page(bench: &mut Bench<'_>) -> Outcome {
    let (memory, small) = (bench.allocator.memory(12)?.untyped(), bench.allocator.memory(11)?.untyped());
    let slot = bench.slot()?;
    equal!(refused!(initial::ASID_CONTROL.make_pool(small, slot), InvalidCapability).details[0], 1);
    let none = Untyped::from_pointer(initial::CNODE.pointer());
    refused!(initial::ASID_CONTROL.make_pool(none, slot), InvalidCapability);
    refused!(initial::ASID_CONTROL.make_pool(memory, Slot::own(memory.pointer())), DeleteFirst);
    refused!(initial::ASID_CONTROL.make_pool(memory, Slot { depth: 65, ..slot }), RangeError);
    let no_root = Slot { root: sel4::capability::CNode::from_pointer(memory.pointer()), ..slot };
    refused!(initial::ASID_CONTROL.make_pool(memory, no_root), FailedLookup);
    let control = AsidControl::from_pointer(initial::THREAD.pointer());
    refused!(control.make_pool(memory, slot), IllegalOperation);
    initial::ASID_CONTROL.make_pool(memory, slot)?;
    let second = bench.slot()?;
    refused!(initial::ASID_CONTROL.make_pool(memory, second), RevokeFirst);
    let pool = AsidPool::from_pointer(slot.index);
    let first = table(bench)?;
    pool.assign(first)?;
    refused!(initial::ASID_POOL.assign(first), InvalidCapability);
    // Deleting a pool deletes the ASIDs of its address spaces: the table has none any more.
    slot.delete()?;
    refused!(table(bench)?.map(first, ADDRESS, 0), FailedLookup);
    Ok(())
}

pub fn pools_run_out(bench: &mut Bench<'_>) -> Outcome {
    let memory = bench.allocator.memory(12)?.untyped();
    let slot = bench.slot()?;
    initial::ASID_CONTROL.make_pool(memory, slot)?;
    let pool = AsidPool::from_pointer(slot.index);
    let spare = table(bench)?;
    for _ in 0..512 {
        pool.assign(table(bench)?)?;
    }
    refused!(pool.assign(spare), DeleteFirst);
    initial::ASID_POOL.assign(spare)?;
    Ok(())
}
