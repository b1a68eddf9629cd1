//! The driver of folders against a fake device.

use std::vec;
use std::vec::Vec;

use crate::fake::{Device, EVENT_INDEX, PCI, PCI_WITH_MESSAGES, Piece, probe};
use crate::{Error, Folder, LONGEST_MESSAGE, RequestError};

type Driven = Folder<Device, Piece>;

fn start(device: &Device) -> Driven {
    Folder::new(probe(device).unwrap(), device.allocator()).unwrap()
}

fn ask(folder: &mut Driven, message: &[u8]) -> Result<Vec<u8>, RequestError> {
    let mut answer = vec![0; LONGEST_MESSAGE];
    folder.send(message)?;
    let length = folder.take(&mut answer).expect("the device has answered")?;
    answer.truncate(length);
    Ok(answer)
}

#[test]
fn messages_are_answered_again_and_again() {
    for (version, features) in [(1, 0), (2, 0), (1, EVENT_INDEX), (2, EVENT_INDEX), (PCI, 0), (PCI_WITH_MESSAGES, 0)] {
        let device = Device::folder(version, features, true);
        let mut folder = start(&device);
        assert_eq!(folder.name(), b"host");
        for turn in 0..70_000u32 {
            assert_eq!(ask(&mut folder, b"message").as_deref(), Ok(&b"\t\t\t\t\t\t\tegassem"[..]), "{turn}");
            if turn > 10 && features == 0 {
                break;
            }
        }
        for wrong in [0, LONGEST_MESSAGE + 1] {
            assert_eq!(ask(&mut folder, &vec![0; wrong]), Err(RequestError::Invalid));
        }
        assert_eq!(ask(&mut folder, &[1; LONGEST_MESSAGE]).map(|answer| answer.len()), Ok(LONGEST_MESSAGE));
    }
}

#[test]
fn a_device_that_does_not_answer_is_given_up() {
    let device = Device::folder(2, 0, false);
    let mut folder = start(&device);
    let mut answer = vec![0; 64];
    folder.send(b"one").unwrap();
    assert_eq!(folder.take(&mut answer), None);
    assert_eq!(folder.send(b"two"), Err(RequestError::Full));
    device.end_one(0);
    assert_eq!(folder.take(&mut answer[..8]), Some(Err(RequestError::Failed)), "longer than the room");
    folder.send(b"three").unwrap();
    folder.give_up();
    assert_eq!(folder.take(&mut answer), Some(Err(RequestError::Gone)));
    assert_eq!(folder.send(b"four"), Err(RequestError::Gone));
    assert_eq!(folder.failure(), Some(Error::Misbehaved));
}

#[test]
fn other_devices_are_none() {
    let device = Device::disk(2, 0, 8);
    assert_eq!(Folder::new(probe(&device).unwrap(), device.allocator()).err(), Some(Error::Unsupported));
}
