//! Digests by which the explorer identifies states.

use std::collections::HashSet;

use mp_models::digest::digest;

/// States that differ little, like the states of one world, must not have equal halves of digests.
#[test]
fn similar_states_have_distinct_digests() {
    let (mut high, mut low) = (HashSet::new(), HashSet::new());
    let mut states = 0;
    let mut see = |state: &dyn Fn() -> u128| {
        let digest = state();
        states += 1;
        assert!(high.insert((digest >> 64) as u64) && low.insert(digest as u64), "state {states}");
    };
    for i in 0..20_u64 {
        for j in 0..20_u64 {
            for (k, flag) in (0..400_u32).zip([true, false].into_iter().cycle()) {
                see(&|| digest(&(vec![i, 0, j], k, flag, Some(1_u8))));
                see(&|| digest(&(vec![i, j], u64::from(k) << 40, [flag; 3])));
            }
        }
    }
    // Each state differs in one bit of one word, at any position.
    for word in 0..64 {
        for bit in 0..64 {
            let mut words = [0_u64; 64];
            words[word] = 1 << bit;
            see(&|| digest(&words));
        }
    }
    assert_eq!(states, 20 * 20 * 400 * 2 + 64 * 64);
}
