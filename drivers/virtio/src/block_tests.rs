//! The disk's driver against a fake disk.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::fake::{Device, EVENT_INDEX, MODERN, Model, PCI, PCI_WITH_MESSAGES, Piece, probe};
use crate::{Data, Disk, Ended, Error, Memory, Request, RequestError, Ticket};

const MOST_PARTS_FEATURE: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 5;
const BLOCK_SIZE: u64 = 1 << 6;
const FLUSH: u64 = 1 << 9;
const DISCARD: u64 = 1 << 13;
const WRITE_ZEROES: u64 = 1 << 14;

/// Pieces of memory, each with the number of its bytes that are used.
#[derive(Default)]
struct Pieces(Vec<(Piece, u32)>);

impl Data for Pieces {
    fn parts(&self) -> impl Iterator<Item = (u64, u32)> {
        self.0.iter().map(|(piece, length)| (piece.physical_address(), *length))
    }

    fn abandon(&mut self) {
        self.0.drain(..).for_each(|(mut piece, _)| piece.abandon());
    }
}

impl Pieces {
    fn new(device: &Device, lengths: &[u32], bytes: &[u8]) -> Pieces {
        let mut allocate = device.allocator();
        let mut at = 0;
        let piece = |length: &u32| {
            let piece = allocate(*length as usize).unwrap();
            let end = bytes.len().min(at + *length as usize);
            piece.write(0, &bytes[at.min(end)..end]);
            at = end;
            (piece, *length)
        };
        Pieces(lengths.iter().map(piece).collect())
    }

    fn bytes(&self) -> Vec<u8> {
        let mut all = vec![];
        for (piece, length) in &self.0 {
            let mut bytes = vec![0; *length as usize];
            piece.read(0, &mut bytes);
            all.extend(bytes);
        }
        all
    }
}

type Driven = Disk<Device, Piece, Pieces>;

fn start(device: &Device) -> Driven {
    Disk::new(probe(device).unwrap(), device.allocator()).unwrap()
}

fn submit(disk: &mut Driven, request: Request, data: Pieces) -> Result<Ticket, RequestError> {
    disk.submit(request, data).map_err(|(error, _)| error)
}

/// Makes a request and waits for its end.
fn ask(disk: &mut Driven, request: Request, data: Pieces) -> Result<Vec<u8>, RequestError> {
    let ticket = submit(disk, request, data)?;
    disk.notify();
    let Ended { ticket: ended, data, outcome } = disk.take().expect("the device has ended it");
    assert_eq!(ended, ticket);
    outcome.map(|()| data.bytes())
}

#[test]
fn sectors_are_written_and_read_in_parts() {
    for (version, features) in [
        (1, 0),
        (2, 0),
        (1, EVENT_INDEX),
        (2, EVENT_INDEX),
        (2, FLUSH | DISCARD),
        (PCI, 0),
        (PCI_WITH_MESSAGES, FLUSH | DISCARD),
    ] {
        let device = Device::disk(version, features, 1000);
        let mut disk = start(&device);
        assert_eq!((disk.sectors(), disk.block_size(), disk.is_read_only()), (1000, 512, false));
        assert_eq!(disk.has_cache(), features & FLUSH != 0);
        // Once so often that the indices wrap around: two requests each time.
        for number in 0..if features == EVENT_INDEX && version == 2 { 33_000 } else { 500u64 } {
            let bytes: Vec<_> = (0..1536u64).map(|at| (at ^ number) as u8).collect();
            let start = number % 997;
            let lengths: &[u32] = [&[1536][..], &[512, 1024], &[100, 1000, 436]][number as usize % 3];
            ask(&mut disk, Request::Write(start), Pieces::new(&device, lengths, &bytes)).unwrap();
            let read = ask(&mut disk, Request::Read(start), Pieces::new(&device, &[512, 1024], &[]));
            assert_eq!(read.as_deref(), Ok(&bytes[..]));
            // The arena only grows.
            device.0.borrow().arena.truncate(1 << 20);
        }
        assert_eq!(disk.failure(), None);
        assert!(disk.take().is_none());
    }
}

#[test]
fn requests_that_cannot_be_are_refused_with_their_data() {
    let device = Device::disk(2, FLUSH, 100);
    let mut disk = start(&device);
    let data = |lengths: &[u32]| Pieces::new(&device, lengths, &[]);
    let invalid = [
        (Request::Read(99), data(&[1024])),
        (Request::Read(100), data(&[512])),
        (Request::Read(u64::MAX), data(&[512])),
        (Request::Write(0), data(&[])),
        (Request::Write(0), data(&[511])),
        (Request::Write(0), data(&[512, 0])),
        (Request::Write(0), data(&[512; crate::MOST_PARTS + 1])),
        (Request::Flush, data(&[512])),
    ];
    for (request, data) in invalid {
        let parts = data.0.len();
        let (error, data) = disk.submit(request, data).map(|_| ()).unwrap_err();
        assert_eq!((error, data.0.len()), (RequestError::Invalid, parts), "{request:?}");
    }
    for request in [Request::Discard(0, 1), Request::WriteZeroes(0, 1)] {
        assert_eq!(submit(&mut disk, request, data(&[])), Err(RequestError::Unsupported));
    }
    assert_eq!(ask(&mut disk, Request::Write(0), data(&[512; crate::MOST_PARTS])).map(|_| ()), Ok(()));
    assert_eq!(disk.take().map(|ended| ended.ticket), None);

    let device = Device::disk(2, READ_ONLY | DISCARD, 100);
    let mut disk = start(&device);
    assert!(disk.is_read_only());
    for request in [Request::Write(0), Request::Read(0)] {
        let outcome = ask(&mut disk, request, Pieces::new(&device, &[512], &[])).map(|_| ());
        assert_eq!(outcome, if request == Request::Read(0) { Ok(()) } else { Err(RequestError::ReadOnly) });
    }
    assert_eq!(submit(&mut disk, Request::Discard(0, 1), Pieces::default()), Err(RequestError::ReadOnly));
}

#[test]
fn ranges_are_zeroed_and_discarded_within_the_device_s_limits() {
    let device = Device::disk(2, DISCARD | WRITE_ZEROES | BLOCK_SIZE | MOST_PARTS_FEATURE, 100);
    {
        let mut state = device.0.borrow_mut();
        for (offset, value) in [(12, 3u32), (20, 4096), (36, 10), (48, 20)] {
            state.disk.configuration[offset - 8..][..4].copy_from_slice(&value.to_le_bytes());
        }
        state.disk.contents.fill(7);
    }
    let mut disk = start(&device);
    assert_eq!((disk.block_size(), disk.most_parts()), (4096, 3));
    assert_eq!((disk.most_discarded(), disk.most_zeroed()), (10, 20));
    assert_eq!(ask(&mut disk, Request::WriteZeroes(10, 20), Pieces::default()), Ok(vec![]));
    assert_eq!(ask(&mut disk, Request::Discard(50, 10), Pieces::default()), Ok(vec![]));
    for request in [
        Request::WriteZeroes(10, 21),
        Request::WriteZeroes(0, 0),
        Request::WriteZeroes(90, 11),
        Request::Discard(1, 11),
        Request::Discard(u64::MAX, 2),
    ] {
        assert_eq!(submit(&mut disk, request, Pieces::default()), Err(RequestError::Invalid), "{request:?}");
    }
    let parts = |count| Pieces::new(&device, &[512, 512, 512, 512][..count], &[]);
    assert_eq!(submit(&mut disk, Request::Read(0), parts(4)), Err(RequestError::Invalid));
    assert_eq!(ask(&mut disk, Request::Read(9), parts(3)).map(|bytes| (bytes[511], bytes[512])), Ok((7, 0)));
    assert!(!disk.has_cache());
}

#[test]
fn many_requests_are_under_way_and_end_in_any_order() {
    let device = Device::disk(2, EVENT_INDEX | FLUSH, 4096);
    let mut disk = start(&device);
    device.0.borrow_mut().disk.at_once = false;
    let most = disk.most_requests();
    let mut tickets = vec![];
    for number in 0..most {
        let data = Pieces::new(&device, &[512], &[number as u8; 512]);
        tickets.push(submit(&mut disk, Request::Write(number as u64), data).unwrap());
    }
    assert_eq!(submit(&mut disk, Request::Flush, Pieces::default()), Err(RequestError::Full));
    disk.notify();
    assert!(disk.take().is_none());
    let mut ended = vec![];
    for number in 0..most {
        device.end_one(number * 7919 % (most - number));
        assert!(device.0.borrow().interrupt != 0, "the driver waits for it");
        disk.acknowledge_interrupt();
        ended.push(disk.take().map(|ended| (ended.ticket, ended.outcome)).unwrap());
        assert!(disk.take().is_none());
    }
    ended.sort_by_key(|(ticket, _)| ticket.number());
    tickets.sort_by_key(|ticket| ticket.number());
    assert_eq!(ended, tickets.into_iter().map(|ticket| (ticket, Ok(()))).collect::<Vec<_>>());
    let first = |disk: &[u8]| disk.iter().step_by(512).take(most).copied().collect::<Vec<_>>();
    let state = || device.0.borrow();
    assert_eq!(first(&state().disk.contents), (0..most).map(|number| number as u8).collect::<Vec<_>>());
    assert_eq!(first(&state().disk.lasting), vec![0; most], "nothing was flushed");
    device.0.borrow_mut().disk.at_once = true;
    assert_eq!(ask(&mut disk, Request::Flush, Pieces::default()), Ok(vec![]));
    assert_eq!(state().disk.lasting, state().disk.contents);
}

#[test]
fn failures_reach_their_request_alone() {
    let device = Device::disk(2, FLUSH, 100);
    let mut disk = start(&device);
    device.0.borrow_mut().disk.statuses = [1, 2, 0].into();
    let data = || Pieces::new(&device, &[512], &[]);
    assert_eq!(ask(&mut disk, Request::Read(0), data()), Err(RequestError::Failed));
    assert_eq!(ask(&mut disk, Request::Flush, Pieces::default()), Err(RequestError::Unsupported));
    assert_eq!(ask(&mut disk, Request::Read(0), data()), Ok(vec![0; 512]));
    // The device has "ended" a request without a status, which is no request's failure but its own.
    device.0.borrow_mut().disk.statuses = [0xff].into();
    assert_eq!(ask(&mut disk, Request::Read(0), data()), Err(RequestError::Gone));
    assert_eq!(disk.failure(), Some(Error::Misbehaved));
    assert_eq!(submit(&mut disk, Request::Read(0), data()), Err(RequestError::Gone));
    assert!(disk.take().is_none());
}

/// A request's memory comes back when the device is given up, and then it must be nobody's any more.
#[test]
fn memory_of_a_disk_that_goes_on_gets_no_other_owner() {
    for version in [1, 2, PCI, PCI_WITH_MESSAGES] {
        let device = Device::disk(version, 0, 100);
        let arena = device.0.borrow().arena.clone();
        for (is_given_up, goes_on) in [(false, false), (false, true), (true, false), (true, true)] {
            let (begin, before) = (arena.0.borrow().len(), arena.abandoned());
            let mut disk = start(&device);
            device.0.borrow_mut().disk.at_once = false;
            for sector in 0..3 {
                submit(&mut disk, Request::Read(sector), Pieces::new(&device, &[512], &[])).unwrap();
            }
            disk.notify();
            let lent = arena.0.borrow().len() - begin;
            device.0.borrow_mut().goes_on = goes_on;
            if is_given_up {
                disk.give_up();
                let data = std::iter::from_fn(|| disk.take()).map(|ended| ended.data.0.len()).sum::<usize>();
                assert_eq!(data, if goes_on && version < PCI { 0 } else { 3 });
            }
            drop(disk);
            let mut state = device.0.borrow_mut();
            assert_eq!(state.queues[0].used != 0, goes_on);
            assert_eq!(arena.abandoned() - before, if goes_on && version < PCI { lent } else { 0 });
            if version >= PCI {
                assert_eq!(state.configuration[&4] & 4 == 0, goes_on, "its access to memory");
            }
            state.goes_on = false;
            state.disk.waiting.clear();
        }
    }
}

#[test]
fn a_device_that_does_not_answer_is_given_up_with_all_requests() {
    let device = Device::disk(2, 0, 100);
    let mut disk = start(&device);
    device.0.borrow_mut().disk.at_once = false;
    for sector in 0..3 {
        submit(&mut disk, Request::Write(sector), Pieces::new(&device, &[512], &[9])).unwrap();
    }
    disk.notify();
    device.end_one(1);
    assert!(matches!(disk.take(), Some(Ended { outcome: Ok(()), .. })));
    disk.give_up();
    let outcomes: Vec<_> =
        std::iter::from_fn(|| disk.take()).map(|ended| (ended.data.0.len(), ended.outcome)).collect();
    assert_eq!(outcomes, [(1, Err(RequestError::Gone)), (1, Err(RequestError::Gone))]);
    assert_eq!(device.0.borrow().queues[0].used, 0, "it has been reset");
}

#[test]
fn unusable_devices_and_short_memory_are_errors() {
    let network = Device::network(2, 0);
    let driven = Driven::new(probe(&network).unwrap(), network.allocator());
    assert_eq!(driven.err(), Some(Error::Unsupported));
    // Without tables of descriptors, and without a queue.
    for (features, largest_queue) in [(MODERN, 256), (MODERN | 1 << 28, 1), (MODERN | 1 << 28, 0)] {
        let device = Device::new(Model { kind: 2, version: 2, features, largest_queue }, 0);
        let driven = Driven::new(probe(&device).unwrap(), device.allocator());
        assert_eq!(driven.err(), Some(Error::Unsupported));
    }
    let device = Device::disk(2, 0, 8);
    for possible in 0..2 {
        let (mut left, mut allocate) = (possible, device.allocator());
        let allocate = |bytes| {
            left -= 1;
            if left >= 0 { allocate(bytes) } else { None }
        };
        let driven = Driven::new(probe(&device).unwrap(), allocate);
        assert_eq!(driven.err(), Some(Error::OutOfMemory));
    }
    // A queue of an odd size.
    let device = Device::new(Model { kind: 2, version: 2, features: MODERN | 1 << 28, largest_queue: 5 }, 0);
    let mut state = device.0.borrow_mut();
    (state.disk.contents, state.disk.at_once) = (vec![5; 1024], true);
    drop(state);
    let mut disk = start(&device);
    assert_eq!(disk.most_requests(), 4);
    assert_eq!(ask(&mut disk, Request::Read(1), Pieces::new(&device, &[512], &[])), Ok(vec![5; 512]));
}

proptest! {
    #![proptest_config(property::cases(300))]

    /// A device that reports anything as used, with any length and status, gets at most the requests that are under
    /// way, each once.
    #[test]
    fn a_hostile_device_ends_each_request_once(
        lies in proptest::collection::vec((any::<u8>(), any::<u32>(), any::<u8>()), 1..40),
        index in any::<u16>(),
    ) {
        let device = Device::disk(2, EVENT_INDEX, 100);
        let mut disk = start(&device);
        device.0.borrow_mut().disk.at_once = false;
        device.0.borrow_mut().lies = true;
        let mut under_way = vec![];
        for sector in 0..20 {
            under_way.push(submit(&mut disk, Request::Read(sector), Pieces::new(&device, &[512], &[])).unwrap());
        }
        disk.notify();
        let used = device.0.borrow().queues[0].used;
        for (place, (number, length, status)) in lies.iter().enumerate() {
            let state = device.0.borrow();
            let entry = used + 4 + 8 * place as u64;
            state.arena.put(entry, &u32::from(*number).to_le_bytes());
            state.arena.put(entry + 4, &(length % 600).to_le_bytes());
            if let Some(chain) = state.disk.waiting.iter().find(|chain| chain.head == u16::from(*number)) {
                state.arena.put(chain.parts.last().unwrap().0, &[status % 4]);
            }
            state.arena.put(used + 2, &index.min(lies.len() as u16).to_le_bytes());
        }
        while let Some(ended) = disk.take() {
            let place = under_way.iter().position(|ticket| *ticket == ended.ticket);
            prop_assert!(place.is_some(), "{:?} ended twice", ended.ticket);
            under_way.remove(place.unwrap());
            prop_assert_eq!(ended.data.0.len(), 1);
        }
        disk.give_up();
        prop_assert_eq!(std::iter::from_fn(|| disk.take()).count(), under_way.len());
    }
}
