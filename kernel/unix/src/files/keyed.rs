//! Numbers and keys of System V's objects (ftok(3)).

use alloc::collections::BTreeMap;

use abi_unix::Errno;
use abi_unix::types::segment as number;

/// Objects of one kind, by their numbers, and those that have one by their keys.
pub(crate) struct KeyedObjects<T> {
    objects: BTreeMap<u32, T>,
    keys: BTreeMap<i32, u32>,
    last: u32,
}

impl<T> KeyedObjects<T> {
    /// Creates an empty table.
    pub(crate) const fn new() -> KeyedObjects<T> {
        KeyedObjects { objects: BTreeMap::new(), keys: BTreeMap::new(), last: 0 }
    }

    /// Returns the object with this number.
    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.objects.get(&id)
    }

    /// Returns the object with this key; `None` if one is to be made. `ENOENT` and `EEXIST` as the flags of `shmget`
    /// and its kin have it.
    pub(crate) fn with_key(&self, key: i32, flags: u32) -> Result<Option<&T>, Errno> {
        let creates = flags & number::CREATE != 0;
        match self.keys.get(&key) {
            _ if key == number::PRIVATE => Ok(None),
            Some(_) if creates && flags & number::EXCLUSIVE != 0 => Err(Errno::EEXIST),
            Some(id) => Ok(self.objects.get(id)),
            None if creates => Ok(None),
            None => Err(Errno::ENOENT),
        }
    }

    /// Enters an object with a key that none has, or with none, which is made with its number; returns the number.
    pub(crate) fn insert(&mut self, key: i32, make: impl FnOnce(u32) -> T) -> u32 {
        let id = loop {
            self.last = if self.last >= i32::MAX as u32 { 1 } else { self.last + 1 };
            if !self.objects.contains_key(&self.last) {
                break self.last;
            }
        };
        if key != number::PRIVATE {
            self.keys.insert(key, id);
        }
        self.objects.insert(id, make(id));
        id
    }

    /// Lets nobody find the object by this key any more, if that is its key.
    pub(crate) fn forget_key(&mut self, key: i32, id: u32) {
        if self.keys.get(&key) == Some(&id) {
            self.keys.remove(&key);
        }
    }

    /// Puts another object into the place of one, and returns that.
    pub(crate) fn replace(&mut self, id: u32, object: T) -> Option<T> {
        self.objects.insert(id, object)
    }

    /// Removes an object, which must have no key any more.
    pub(crate) fn remove(&mut self, id: u32) -> Option<T> {
        self.objects.remove(&id)
    }

    /// Returns the objects with numbers from this one on.
    pub(crate) fn from(&self, id: u32) -> impl Iterator<Item = (u32, &T)> {
        self.objects.range(id..).map(|(id, object)| (*id, object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_found_by_number_and_by_key_until_that_is_forgotten() {
        const BOTH: u32 = number::CREATE | number::EXCLUSIVE;
        let mut table = KeyedObjects::new();
        assert_eq!(table.with_key(7, 0), Err(Errno::ENOENT));
        assert_eq!((table.with_key(7, BOTH), table.with_key(number::PRIVATE, 0)), (Ok(None), Ok(None)));
        let first = table.insert(7, |id| id * 10);
        let second = table.insert(number::PRIVATE, |id| id * 10);
        assert!(first != second);
        assert_eq!(
            (table.with_key(7, 0), table.with_key(7, number::CREATE)),
            (Ok(Some(&(first * 10))), table.with_key(7, 0))
        );
        assert_eq!(table.with_key(7, BOTH), Err(Errno::EEXIST));
        table.forget_key(7, second);
        assert!(table.with_key(7, 0).is_ok());
        table.forget_key(7, first);
        assert_eq!(table.with_key(7, 0), Err(Errno::ENOENT));
        assert_eq!(table.replace(first, 1), Some(first * 10));
        assert_eq!(table.from(0).map(|(_, object)| *object).sum::<u32>(), 1 + second * 10);
        assert_eq!((table.remove(first), table.get(first)), (Some(1), None));
    }
}
