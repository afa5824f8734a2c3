//! The processes that things are attached to, in the page that agent and watchdog share, and as words of the command that mends them.

use crate::mend::heirs::Known;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Processes that the watchdog can keep at one time: the page that it shares with the agent has room for so many.
pub const MOST_TARGETS: usize = 64;
/// Numbers that are known of a process, as the program that mends wants them: device and inode of the program that it runs, begin of its code
/// and of its stack, its parent, its begin in clock ticks; 0: not known.
const KNOWN: usize = 6;
/// In place of a PID: somebody is writing what is known of the process.
const TAKEN: u32 = u32::MAX;

/// Where the watchdog has a process.
#[derive(Debug, PartialEq, Eq)]
pub struct WatchSlot(usize);

/// One process.
#[derive(Debug)]
struct Slot {
    /// 0: none.
    pid: AtomicU32,
    known: [AtomicU64; KNOWN],
}

/// The processes; all zero: none.
#[derive(Debug)]
pub(super) struct Slots([Slot; MOST_TARGETS]);

impl Slots {
    /// Keeps a process. `None`: there is no room.
    pub fn take(&self, pid: u32, known: Known) -> Option<WatchSlot> {
        let free =
            |slot: &Slot| slot.pid.compare_exchange(0, TAKEN, Ordering::AcqRel, Ordering::Acquire).is_ok();
        let index = self.0.iter().position(free)?;
        let (device, inode) = known.program.map_or((0, 0), |program| (program.device, program.inode));
        let (code, stack) = known.image.map_or((0, 0), |image| (image.code, image.stack));
        let (parent, begun) = (known.parent.map_or(0, u64::from), known.start_ticks.unwrap_or(0));
        let numbers = [device, inode, code, stack, parent, begun];
        let slot = &self.0[index];
        for (place, number) in slot.known.iter().zip(numbers) {
            place.store(number, Ordering::Release);
        }
        slot.pid.store(pid, Ordering::Release);
        Some(WatchSlot(index))
    }

    /// Keeps it no longer.
    pub fn free(&self, slot: WatchSlot) {
        self.0[slot.0].pid.store(0, Ordering::Release);
    }
}

/// The processes as words of a command: of each its PID and what is known of it.
pub(super) struct Words {
    numbers: [[Decimal; 1 + KNOWN]; MOST_TARGETS],
    count: usize,
}

impl Words {
    /// Neither allocates nor enters the kernel.
    pub fn of(slots: &Slots) -> Self {
        let mut words = Self { numbers: [[Decimal::of(0); 1 + KNOWN]; MOST_TARGETS], count: 0 };
        for slot in &slots.0 {
            let pid = slot.pid.load(Ordering::Acquire);
            if pid == 0 || pid == TAKEN {
                continue;
            }
            if let Some(place) = words.numbers.get_mut(words.count) {
                let known = slot.known.iter().map(|number| number.load(Ordering::Acquire));
                for (word, number) in place.iter_mut().zip(std::iter::once(u64::from(pid)).chain(known)) {
                    *word = Decimal::of(number);
                }
                words.count += 1;
            }
        }
        words
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The arguments of a command that begins with these words; what lies behind the last is null. They point into `self`.
    pub fn after(&self, first: [&CStr; 2]) -> [*const c_char; 3 + MOST_TARGETS * (1 + KNOWN)] {
        let mut arguments = [std::ptr::null(); 3 + MOST_TARGETS * (1 + KNOWN)];
        let first = first.into_iter().map(CStr::as_ptr);
        let numbers = self.numbers.iter().take(self.count).flatten().map(Decimal::as_ptr);
        // The last stays null: there is one place more than there are words.
        for (place, word) in arguments.iter_mut().zip(first.chain(numbers)) {
            *place = word;
        }
        arguments
    }
}

/// A number as a NUL-terminated string, without allocation.
#[derive(Clone, Copy)]
struct Decimal {
    /// Twenty digits at most, and the NUL.
    digits: [u8; 21],
    first: usize,
}

impl Decimal {
    fn of(mut number: u64) -> Self {
        let mut decimal = Self { digits: [0; 21], first: 19 };
        loop {
            // OK because the remainder is a digit, and 20 of them are enough for 2^64.
            decimal.digits[decimal.first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return decimal;
            }
            decimal.first -= 1;
        }
    }

    fn as_ptr(&self) -> *const libc::c_char {
        self.digits[self.first..].as_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mend::heirs::{FileId, Image};

    fn slots() -> Slots {
        let slot = || Slot { pid: AtomicU32::new(0), known: [const { AtomicU64::new(0) }; KNOWN] };
        Slots(std::array::from_fn(|_| slot()))
    }

    fn known(number: u64) -> Known {
        Known {
            program: Some(FileId { device: number, inode: number + 1 }),
            image: Some(Image { code: number + 2, stack: number + 3 }),
            parent: Some(7),
            start_ticks: Some(8),
        }
    }

    fn words(slots: &Slots) -> Vec<String> {
        let words = Words::of(slots);
        let arguments = words.after([c"tithe", c"mend"]);
        let text = |word: &*const c_char| {
            // SAFETY: points into `words`, or to a constant, and ends in a NUL.
            unsafe { CStr::from_ptr(*word) }.to_str().unwrap().to_owned()
        };
        let all: Vec<String> = arguments.iter().take_while(|word| !word.is_null()).map(text).collect();
        assert!(arguments[all.len()..].iter().all(|word| word.is_null()));
        all
    }

    #[test]
    fn numbers_become_the_words_of_a_command() {
        for number in [0, 7, 10, 4_294_967_295, u64::MAX] {
            let decimal = Decimal::of(number);
            // SAFETY: points into `decimal`, which ends in a NUL.
            let text = unsafe { CStr::from_ptr(decimal.as_ptr()) };
            assert_eq!(text.to_str(), Ok(&*number.to_string()));
        }
    }

    #[test]
    fn every_process_that_is_kept_is_named_and_no_other() {
        let slots = slots();
        assert!(Words::of(&slots).is_empty());
        assert_eq!(words(&slots), ["tithe", "mend"]);
        let first = slots.take(100, known(10)).unwrap();
        let second = slots.take(200, Known::default()).unwrap();
        slots.take(300, known(30)).unwrap();
        let all = "tithe mend 100 10 11 12 13 7 8 200 0 0 0 0 0 0 300 30 31 32 33 7 8";
        assert_eq!(words(&slots).join(" "), all);
        slots.free(second);
        assert_eq!(words(&slots).join(" "), "tithe mend 100 10 11 12 13 7 8 300 30 31 32 33 7 8");
        slots.free(first);
        // The free place is used again.
        assert_eq!(slots.take(400, known(40)), Some(WatchSlot(0)));
        assert_eq!(words(&slots).join(" "), "tithe mend 400 40 41 42 43 7 8 300 30 31 32 33 7 8");
    }

    #[test]
    fn more_than_there_is_room_for_are_refused_and_all_that_fit_are_named() {
        let slots = slots();
        for pid in 1..=MOST_TARGETS as u32 {
            assert!(slots.take(pid, known(u64::MAX - 3)).is_some());
        }
        assert_eq!(slots.take(9_999, Known::default()), None);
        let words = words(&slots);
        assert_eq!(words.len(), 2 + MOST_TARGETS * (1 + KNOWN));
        assert_eq!(
            words[2 + 63 * (1 + KNOWN)..],
            [
                "64",
                "18446744073709551612",
                "18446744073709551613",
                "18446744073709551614",
                "18446744073709551615",
                "7",
                "8"
            ]
        );
        slots.free(WatchSlot(5));
        assert_eq!(slots.take(9_999, Known::default()), Some(WatchSlot(5)));
    }
}
