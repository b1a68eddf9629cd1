//! Tests of asynchronous invocations by coroutines.

use alloc::sync::Arc;
use alloc::vec::Vec;

use coroutine::{Priority, yield_now};
use sel4::asynchronous::{Calls, Way};
use sel4::capability::{Notification, Page, PageTable, Slot, initial};
use sel4::{Error, ObjectType, Rights, executor};

use crate::{Bench, Outcome, equal};

/// Address at which pages are mapped.
const ADDRESS: u64 = 0x20_0000_0000;

/// Makes a doorbell, and the initial thread's calls with 64 places.
fn calls(bench: &mut Bench<'_>, way: Way) -> sel4::Result<(Notification, Arc<Calls>)> {
    let doorbell = Notification::from_pointer(bench.allocator.object(ObjectType::Notification)?);
    let ringer = Notification::from_pointer(bench.badged(doorbell.pointer(), executor::RINGS)?);
    let harts = bench.boot.cores().1;
    let calls = Calls::new(&mut bench.allocator, &mut bench.window, 64, (initial::THREAD, ringer), harts, way)?;
    Ok((doorbell, calls))
}

/// Returns the word at an address where a page is mapped.
fn word(address: u64) -> *mut u64 {
    core::ptr::with_exposed_provenance_mut(address as usize)
}

pub fn more_coroutines_than_places_map_and_unmap(bench: &mut Bench<'_>) -> Outcome {
    const PAGES: u64 = 150;
    for way in [Way::Asynchronous, Way::Adaptive, Way::Synchronous] {
        let (doorbell, calls) = calls(bench, way)?;
        let mut arena = bench.allocator.memory(20)?;
        let (tables, pages) = (bench.allocator.slots(2)?, bench.allocator.slots(PAGES)?);
        arena.make(ObjectType::PageTable, 0, tables, 2)?;
        arena.make(ObjectType::Page, 0, pages, PAGES)?;
        let of_main = calls.clone();
        let sum = executor::run(doorbell, async move {
            let calls = of_main;
            for table in [tables, tables + 1] {
                PageTable::from_pointer(table).map_async(&calls, initial::ADDRESS_SPACE, ADDRESS, 0).await.unwrap();
            }
            let handles: Vec<_> = (0..PAGES)
                .map(|index| {
                    let calls = calls.clone();
                    executor::spawn(Priority::DEFAULT, async move {
                        let page = Page::from_pointer(pages + index);
                        let address = ADDRESS + (index << 12);
                        for round in 0..4 {
                            let space = initial::ADDRESS_SPACE;
                            page.map_async(&calls, space, address, Rights::READ_WRITE, 0).await.unwrap();
                            // SAFETY: the page was mapped there just now, for this coroutine alone.
                            let found = unsafe { word(address).read_volatile() };
                            assert_eq!(found, round);
                            // SAFETY: as above.
                            unsafe { word(address).write_volatile(round + 1) };
                            // An error reaches its waiter: the page is mapped elsewhere already.
                            let wrong =
                                page.map_async(&calls, space, address + 0x100_0000, Rights::READ_WRITE, 0).await;
                            assert!(wrong.is_err_and(|failure| failure.error == Error::FailedLookup));
                            page.unmap_async(&calls).await.unwrap();
                        }
                        page.physical_address_async(&calls).await.unwrap()
                    })
                })
                .collect();
            let mut last = 0;
            for handle in handles {
                let address = handle.await.expect("it is never cancelled");
                assert!(address > last, "pages are made one behind the other");
                last = address;
            }
            last
        });
        equal!(sum, Page::from_pointer(pages + PAGES - 1).physical_address()?);
        equal!(calls.in_flight(), 0);
        calls.end();
        arena.revoke()?;
    }
    Ok(())
}

pub fn dropped_invocations_give_their_places_back(bench: &mut Bench<'_>) -> Outcome {
    let (doorbell, calls) = calls(bench, Way::Asynchronous)?;
    let page = Page::from_pointer(bench.allocator.object(ObjectType::Page)?);
    let expected = page.physical_address()?;
    let of_main = calls.clone();
    let found = executor::run(doorbell, async move {
        let calls = of_main;
        for _ in 0..3 {
            // All places are taken and as many calls wait for one; then half of each is dropped in each state.
            let handles: Vec<_> = (0..128)
                .map(|_| {
                    let calls = calls.clone();
                    executor::spawn(Priority::HIGHEST, async move { page.physical_address_async(&calls).await })
                })
                .collect();
            yield_now().await;
            for (index, handle) in handles.into_iter().enumerate() {
                if index % 2 == 0 {
                    handle.cancel();
                } else {
                    assert_eq!(handle.await.expect("it was not cancelled"), Ok(expected));
                }
            }
        }
        // Every place is free again.
        let all: Vec<_> = (0..64)
            .map(|_| {
                let calls = calls.clone();
                executor::spawn(Priority::DEFAULT, async move { page.physical_address_async(&calls).await })
            })
            .collect();
        let mut count = 0;
        for handle in all {
            count += u64::from(handle.await == Ok(Ok(expected)));
        }
        calls.put_string("note: the kernel writes this, which is longer than the text of one request\n").await;
        calls.put_char(b'\n').await;
        count
    });
    equal!(found, 64);
    equal!(calls.in_flight(), 0);
    calls.end();
    Ok(())
}

pub fn requests_are_made_before_the_first_poll(bench: &mut Bench<'_>) -> Outcome {
    const PLACES: u64 = 64;
    const SLOTS: u64 = 100;
    let (doorbell, calls) = calls(bench, Way::Asynchronous)?;
    let endpoint = Slot::own(bench.allocator.object(ObjectType::Endpoint)?);
    let first = bench.allocator.slots(SLOTS)?;
    let slot = move |index| Slot::own(first + index);
    let of_main = calls.clone();
    executor::run(doorbell, async move {
        let copy = |index| Some(slot(index).copy_from_async(&of_main, endpoint, Rights::ALL));
        let mut copies: Vec<_> = (0..SLOTS).map(copy).collect();
        assert_eq!(of_main.in_flight(), PLACES as usize);
        copies.iter_mut().step_by(2).for_each(|copy| *copy = None);
        for copy in copies.into_iter().flatten() {
            assert_eq!(copy.await, Ok(()));
        }
        // A dropped one that had found no place leaves none behind.
        for index in 0..PLACES {
            assert_eq!(slot(index).delete_async(&of_main).await, Ok(()));
        }
    });
    equal!(calls.in_flight(), 0);
    for index in 0..SLOTS {
        let is_filled = index >= PLACES && index % 2 == 1;
        let expected = if is_filled { Err(Error::DeleteFirst) } else { Ok(()) };
        equal!(slot(index).copy_from(endpoint, Rights::ALL).map_err(|failure| failure.error), expected);
    }
    calls.end();
    Ok(())
}

pub fn slots_are_filled_and_emptied(bench: &mut Bench<'_>) -> Outcome {
    let (doorbell, calls) = calls(bench, Way::Asynchronous)?;
    let endpoint = Slot::own(bench.allocator.object(ObjectType::Endpoint)?);
    let first = bench.allocator.slots(4)?;
    let thread = sel4::capability::Thread::from_pointer(bench.allocator.object(ObjectType::Tcb)?);
    let memory = bench.allocator.memory(12)?.untyped();
    let of_main = calls.clone();
    let results = executor::run(doorbell, async move {
        let calls = &of_main;
        let slot = |index| Slot::own(first + index);
        let root = Slot { root: initial::CNODE, index: 0, depth: 0 };
        let results: Vec<sel4::asynchronous::Outcome<()>> = alloc::vec![
            slot(0).copy_from_async(calls, endpoint, Rights::ALL).await,
            slot(1).mint_from_async(calls, endpoint, Rights::ALL, 9).await,
            slot(1).cancel_badged_sends_async(calls).await,
            slot(2).move_from_async(calls, slot(1)).await,
            slot(2).delete_async(calls).await,
            endpoint.revoke_async(calls).await,
            memory.retype_async(calls, ObjectType::Notification, 0, root, first, 1).await,
            thread.bind_notification_async(calls, Notification::from_pointer(first)).await,
            thread.unbind_notification_async(calls).await,
            thread.unbind_notification_async(calls).await,
            slot(3).mutate_from_async(calls, slot(0), 0).await,
        ];
        results
    });
    let errors: Vec<_> = results.into_iter().map(|result| result.err().map(|failure| failure.error)).collect();
    let mut expected = alloc::vec![None; 11];
    // A second time there is no binding to undo, and capabilities with badges can only be moved with `move_from`.
    expected[9] = Some(Error::IllegalOperation);
    expected[10] = Some(Error::IllegalOperation);
    equal!(errors, expected);
    calls.end();
    Ok(())
}
