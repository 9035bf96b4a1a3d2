use super::*;
use crate::process::mutex::Mutex;

#[test]
fn wake_up_cost_estimate_follows_measured_costs() {
    let cost = Cost::new();
    (0..200).for_each(|_| cost.measured(90_000));
    assert!((80_000..=90_000).contains(&cost.now()), "{}", cost.now());
    (0..200).for_each(|_| cost.measured(8_000));
    assert!((8_000..9_000).contains(&cost.now()), "{}", cost.now());
    (0..1000).for_each(|_| cost.measured(u32::MAX));
    assert!((150_000..=Cost::MOST).contains(&cost.now()), "{}", cost.now());
    (0..1000).for_each(|_| cost.measured(0));
    assert!((Cost::LEAST..5_100).contains(&cost.now()), "{}", cost.now());
}

#[test]
fn wake_up_cost_includes_the_wakers_system_call() {
    let cost = Cost::new();
    let call = |micros| (0..200).for_each(|_| cost.measured_call(Duration::from_micros(micros)));
    call(20);
    assert!((69_000..=70_000).contains(&cost.now()), "{}", cost.now());
    call(2);
    assert!((52_000..52_100).contains(&cost.now()), "{}", cost.now());
    call(10_000_000);
    assert_eq!(cost.now(), 2 * Cost::FIRST, "no more than the wake-up itself");
}

#[test]
fn sleep_of_seconds_does_not_extend_the_spin() {
    // From 4.29 s on, the length of a sleep saturates.
    for slept in [u32::MAX - 1, u32::MAX] {
        assert_eq!(after_a_sleep(LEAST, slept, 50_000), None);
    }
    assert!(after_a_sleep(LEAST, 60_000, 50_000).is_some());
}

/// Simulates two processes that answer each other, with a simulated clock. Returns the number of sleeps
/// during 50 answers.
fn sleeps_of_two_sides(cost: u32, work: u32) -> usize {
    // Both have learnt that spinning does not pay.
    let mut patience = [LEAST; 2];
    let mut other_sleeps = true;
    let mut sleeps = 0;
    for turn in 0..50 {
        let mine = &mut patience[turn % 2];
        let answered = if other_sleeps { cost + work } else { work };
        other_sleeps = answered > *mine;
        if other_sleeps {
            sleeps += 1;
            // From the end of the spin until the thread runs again.
            let slept = answered - *mine + cost;
            *mine = after_nothing(*mine);
            *mine = after_a_sleep(*mine, slept, cost).unwrap_or(*mine);
        } else if *mine < cost {
            *mine = after_a_find(*mine, cost);
        }
    }
    sleeps
}

#[test]
fn two_sleeping_peers_spin_again_if_work_is_short() {
    for cost in [5_000, 25_000, 50_000, 200_000] {
        for work in [300, 1_000, cost / 4, cost / 2, cost * 3 / 4] {
            let sleeps = sleeps_of_two_sides(cost, work);
            assert!(sleeps < 20, "{sleeps} sleeps, wake-ups of {cost} ns, work of {work}");
        }
        let sleeps = sleeps_of_two_sides(cost, 3 * cost);
        assert_eq!(sleeps, 50, "spinning for three wake-ups costs more than a sleep");
    }
}

/// Returns the final spin time of a thread whose waits all take this long.
fn settles(cost: u32, wait: u32) -> u32 {
    let mut patience = cost;
    for _ in 0..100 {
        if wait <= patience {
            patience = patience.max(after_a_find(patience, cost).min(cost));
        } else {
            let slept = wait - patience + cost;
            patience = after_nothing(patience);
            patience = after_a_sleep(patience, slept, cost).unwrap_or(patience);
        }
    }
    patience
}

#[test]
fn spin_time_covers_waits_of_up_to_two_wake_up_costs() {
    let cost = 20_000;
    for wait in [1_000, cost, cost * 3 / 2, cost * 19 / 10] {
        assert!(settles(cost, wait) >= wait, "waits of {wait} ns are found");
    }
    for wait in [cost * 21 / 10, 3 * cost, 100 * cost] {
        assert_eq!(settles(cost, wait), LEAST, "waits of {wait} ns are slept through");
    }
}

#[test]
fn short_sleep_extends_the_adaptive_spin() {
    let patience = AdaptiveSpin { nanos: AtomicU32::new(LEAST), kind: Spin::Adaptive };
    patience.slept(Instant::now());
    assert_eq!(patience.nanos.load(Ordering::Relaxed), 4 * LEAST);
    let set =
        AdaptiveSpin { nanos: AtomicU32::new(LEAST), kind: Spin::For(Duration::from_nanos(LEAST.into())) };
    set.slept(Instant::now());
    assert_eq!(set.nanos.load(Ordering::Relaxed), LEAST, "a fixed spin time does not change");
}

#[test]
fn spin_settings_round_trip_through_a_word() {
    let long = Duration::from_secs(5);
    for spin in [Spin::Never, Spin::Adaptive, Spin::Busy, Spin::For(Duration::from_micros(7))] {
        assert_eq!(Spin::unpack(spin.pack()), spin);
    }
    assert_eq!(Spin::unpack(Spin::For(long).pack()), Spin::For(Duration::from_nanos(u32::MAX.into())));
    assert_eq!(Spin::unpack(u64::MAX), Spin::Adaptive);
}

/// Returns the spin time of a wait that finds nothing.
fn looks_for(patience: &AdaptiveSpin) -> Duration {
    let since = Instant::now();
    assert!(patience.look(|| None::<()>).is_none());
    since.elapsed()
}

/// Lock held by tests that take seats of processors, or need a free seat.
// fork: no copy is made here.
static SEATS_OF_TESTS: Mutex<()> = Mutex::new(());

#[test]
fn fixed_spin_time_stays_constant() {
    let _alone = SEATS_OF_TESTS.lock();
    let time = Duration::from_millis(3);
    let set = AdaptiveSpin { nanos: AtomicU32::new(nanos(time)), kind: Spin::For(time) };
    let adaptive = AdaptiveSpin { nanos: AtomicU32::new(40_000), kind: Spin::Adaptive };
    let spun = (0..50).filter(|_| looks_for(&set) >= time).count();
    // A wait does not spin while a thread of another test spins on the same processor.
    assert!(spun > 25, "{spun} of 50");
    (0..50).for_each(|_| _ = looks_for(&adaptive));
    assert_eq!(adaptive.nanos.load(Ordering::Relaxed), LEAST);
}

/// Simulates threads of another process that spin on all processors.
#[test]
fn taken_spin_seats_prevent_spinning_until_reclaim() {
    let _alone = SEATS_OF_TESTS.lock();
    let arena = Arena::current().unwrap();
    let me = arena.me().unwrap();
    let other = Member::new(me.slot() + 1, me.epoch() + 1);
    for word in (0..SEATS).map(seat) {
        // A thread of another test may have the seat for a moment.
        while arena.map().cas(word, 0, owner(other)).is_err() {
            std::hint::spin_loop();
        }
    }
    let long = Duration::from_secs(4);
    let patience = AdaptiveSpin { nanos: AtomicU32::new(nanos(long)), kind: Spin::For(long) };
    assert!(looks_for(&patience) < long / 2);
    free_processors(arena, other);
    let short = Duration::from_millis(3);
    let patience = AdaptiveSpin { nanos: AtomicU32::new(nanos(short)), kind: Spin::For(short) };
    // Each wait returns its seat at the end. A wait does not spin while a thread of another test spins on the
    // same processor.
    let spun = (0..50).filter(|_| looks_for(&patience) >= short).count();
    assert!(spun > 25, "{spun} of 50");
}

/// A worker keeps the only processor busy. A result that arrives meanwhile is found, but does not extend the
/// next spin.
#[test]
fn preempted_spin_is_not_recorded_as_a_hit() {
    const LATE: usize = 10;
    let _alone = SEATS_OF_TESTS.lock();
    Arena::current().unwrap();
    // In a separate thread, which stays pinned to one processor.
    let looks = std::thread::spawn(|| {
        environment::pin_to_current();
        let until = Instant::now() + Duration::from_secs(10);
        // In shorter spins, the answer did not arrive during a yield.
        let late = || while_another_thread_runs().filter(|(_, took)| *took > Duration::from_micros(400));
        let mut found = Vec::new();
        while found.len() < LATE && Instant::now() < until {
            found.extend(late().map(|(longer, _)| longer));
        }
        found
    });
    let found = looks.join().unwrap();
    assert_eq!(found.len(), LATE, "an answer during a yield was not found");
    // The kernel may also take the processor away at another moment.
    let longer = found.iter().filter(|longer| **longer).count();
    assert!(longer < LATE / 2, "{longer} of {LATE}");
}

/// Spins while another thread needs the processor. Returns the duration of the spin, and `true` if the next
/// spin takes longer. Returns `None` if the spin found no result.
fn while_another_thread_runs() -> Option<(bool, Duration)> {
    const LOOK: u32 = 20_000;
    let (asked, answered) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let waits = Instant::now();
            while asked.load(Ordering::Acquire) == 0 {
                assert!(waits.elapsed() < Duration::from_secs(10), "no thread spins");
                // The spinning thread is on this processor too.
                std::thread::yield_now();
            }
            // Longer than the spin, and it continues, like a thread with more work.
            let since = Instant::now();
            while since.elapsed() < Duration::from_millis(2) {
                let late = since.elapsed() > Duration::from_micros(500);
                answered.store(u32::from(late), Ordering::Release);
            }
        });
        let patience = AdaptiveSpin { nanos: AtomicU32::new(LOOK), kind: Spin::Adaptive };
        let since = Instant::now();
        let found = patience.look(|| {
            asked.store(1, Ordering::Release);
            (answered.load(Ordering::Acquire) == 1).then_some(())
        });
        let took = since.elapsed();
        found.map(|()| (patience.nanos.load(Ordering::Relaxed) > LOOK, took))
    })
}
