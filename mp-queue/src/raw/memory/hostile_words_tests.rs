//! Tests with garbage in a queue's words: no call panics or hangs, and no message of another queue is taken.

use std::sync::mpsc;
use std::time::Duration;

use mp_core::mem::Mem;
use mp_core::words::{EnvelopeId, Holder, Owner};
use mp_core::{Envelopes, Waitable};

use super::RingMemory;
use crate::ring::{Content, Position, Slot, SlotState};
use crate::{GetError, Queue, QueueOptions};

/// Deterministic generator of random numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Returns a plausible but wrong value for a word of a ring.
    fn garbage(&mut self) -> u64 {
        let (near, any) = (self.below(8), self.next());
        match self.below(6) {
            0 => any,
            1 => near,
            2 => u64::MAX - near,
            3 => Position { lap: near, index: self.below(1 << 24) as u32 }.pack(),
            4 => Position { lap: any >> 30, index: near as u32 }.pack(),
            _ => {
                let content = Content::of(self.below(1 << 12) as EnvelopeId);
                let (full, last) = (SlotState::Full(content), SlotState::Last(content));
                let states = [SlotState::Empty, SlotState::Closed, full, last];
                Slot { lap: near, state: states[self.below(4) as usize] }.pack()
            }
        }
    }
}

/// Calls random operations that don't wait.
fn use_it(queue: &Queue<String>, numbers: &mut Numbers) {
    for _ in 0..12 {
        let text = "x".repeat(numbers.below(40) as usize);
        match numbers.below(9) {
            0 | 1 => _ = queue.try_put(text),
            2 | 3 => _ = queue.try_get(),
            4 => _ = queue.try_put_many(vec![text; 3]),
            5 => _ = queue.try_get_many(&mut Vec::new(), 3),
            6 => _ = queue.try_get_lease().map(|lease| lease.map(crate::Lease::ack)),
            7 => _ = queue.dead_letter(),
            _ => _ = (queue.len(), queue.is_full(), queue.is_ready(), queue.put_ready().is_ready()),
        }
    }
}

fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        _ = done.send(());
    });
    assert_ne!(ended.recv_timeout(Duration::from_secs(60)), Err(mpsc::RecvTimeoutError::Timeout), "hangs");
    thread.join().expect("the test does not panic");
}

#[test]
fn arbitrary_ring_words_never_block_or_panic() {
    // Messages in rings whose words are overwritten with garbage are lost.
    mp_core::long_lived_fds::skip_memory_check();
    within_a_minute(|| {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        let other = Queue::<String>::bounded(4).unwrap();
        other.put("another queue's, and too long for a slot".to_owned()).unwrap();
        for round in 0..3000 {
            let options = QueueOptions::new().deliveries(2);
            let queue: Queue<String> = match round % 3 {
                0 => options.capacity(3).create(),
                1 => options.create(),
                _ => options.capacity(3).bytes(100).create(),
            }
            .unwrap();
            use_it(&queue, &mut numbers);
            let memory = queue.raw().memory();
            let m = RingMemory::words(memory.arena);
            // Hints, counts, links, parking words, slots.
            let words =
                if round % 2 == 0 { vec![24, 25, 32, 48, 128, 130, 132] } else { (24..160).collect() };
            for _ in 0..1 + numbers.below(6) {
                let word = words[numbers.below(words.len() as u64) as usize];
                m.store(memory.header.base_word(word), numbers.garbage());
                use_it(&queue, &mut numbers);
            }
            if round % 4 == 0 {
                queue.close();
                use_it(&queue, &mut numbers);
            }
        }
        assert_eq!(other.try_get().unwrap().as_deref(), Some("another queue's, and too long for a slot"));
        assert!(other.try_get().unwrap_err().is_empty());
    });
}

/// The slot names an envelope that is in no queue or in another queue. A get returns one error, and no
/// message is lost.
#[test]
fn get_from_slot_naming_a_missing_message_is_an_error() {
    let queue = Queue::<String>::bounded(1).unwrap();
    let memory = queue.raw().memory();
    let (arena, ring) = (memory.arena, memory.chain.first);
    let m = RingMemory::words(arena);
    let packed = queue.pack("mine, and in no queue".to_owned()).unwrap();
    let mine = packed.number().unwrap();
    let owner = m.load(Envelopes(arena).owner_words().of(mine));
    for (lap, e) in [(1, mine), (2, arena.most_messages()), (3, Content::LAST_ENVELOPE)] {
        m.store(ring.slot(0), Slot { lap, state: SlotState::Full(Content::of(e)) }.pack());
        let error = queue.try_get().unwrap_err();
        assert!(matches!(error, GetError::Failed(_)), "{error:?}");
        assert!(error.to_string().contains(&format!("message {e}")), "{error}");
        assert!(queue.try_get().unwrap_err().is_empty());
    }
    assert_eq!(m.load(Envelopes(arena).owner_words().of(mine)), owner, "the owner word is unchanged");
    assert!(matches!(Owner::unpack(owner).holder, Holder::Member(_)));
    queue.put("the next one, which is too long for a slot".to_owned()).unwrap();
    assert!(queue.get().unwrap().is_some());
    assert_eq!(packed.unpack().unwrap(), "mine, and in no queue");
}
