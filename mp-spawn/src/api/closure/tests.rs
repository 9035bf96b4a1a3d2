//! Round trips of closures through an encoding.

use super::*;

fn there_and_back<A: 'static, R: 'static>(closure: &Closure<A, R>) -> Result<Closure<A, R>, String> {
    let bytes = rmp_serde::to_vec(closure).map_err(|error| error.to_string())?;
    rmp_serde::from_slice(&bytes).map_err(|error| error.to_string())
}

#[test]
fn each_form_of_closure_round_trips() {
    let (one, text) = (1u8, "text".to_string());
    assert_eq!(there_and_back(&closure!([] || 5u8)).unwrap().call(()), 5);
    assert_eq!(there_and_back(&closure!([one] |x: u8| x + one)).unwrap().call(2), 3);
    let long =
        closure!([one, text, two = 2u8,] |x: u8, y: u8,| -> (u8, usize) { (x + y + one + two, text.len()) });
    assert_eq!(there_and_back(&long).unwrap().call((10, 20)), (33, 4));
    assert_eq!(
        there_and_back(&closure!([inner = long.clone()] |x: u8| inner.call((x, 0)).0)).unwrap().call(1),
        4
    );
    assert_eq!(long.clone().call((0, 0)), (3, 4));
}

#[test]
fn closure_macro_accepts_patterns_as_parameters() {
    struct Point {
        x: u8,
        y: u8,
    }
    struct Pair(u8, u8);
    let one = 1u8;
    let tuple = closure!([one] |(a, b): (u8, u8)| a * b + one);
    assert_eq!(there_and_back(&tuple).unwrap().call((2, 3)), 7);
    let many = closure!([] |mut sum: u8, [a, b]: [u8; 2], _: String, (c, (d, _)): (u8, (u8, u8))| -> u8 {
        sum += a + b + c + d;
        sum
    });
    assert_eq!(there_and_back(&many).unwrap().call((1, [2, 3], String::new(), (4, (5, 6)))), 15);
    let last = closure!([] |a: u8, mut b: u8,| { b += a; b });
    assert_eq!(last.call((1, 2)), 3);
    let fields = closure!([one] |Point { x, y }: Point, Pair(a, b): Pair| x + y + a - b + one);
    assert_eq!(fields.call((Point { x: 1, y: 2 }, Pair(4, 1))), 7);
    type Nested = StateClosure<u64, (u64, (u64, u64)), u64>;
    let state: Nested = closure!([] |sum: &mut u64, a: u64, (b, c): (u64, u64)| {
        *sum += a * b + c;
        *sum
    });
    assert_eq!(state.call((BorrowedState::new(Box::new(4)), (1, (2, 3)))).1, 9);
    type Pairs = StateClosure<u64, (u64, u64), u64>;
    let state: Pairs = closure!([one] |sum: &mut u64, (b, c): (u64, u64)| -> u64 {
        *sum += b * c;
        *sum + u64::from(*one)
    });
    assert_eq!(state.call((BorrowedState::new(Box::new(4)), (2, 3))).1, 11);
}

#[test]
fn closure_with_state_returns_the_changed_state() {
    let step = 2u64;
    let add = closure!([step] |sum: &mut u64, x: u64, y: u64| -> u64 {
        *sum += step * x;
        if y == 0 {
            return 0;
        }
        *sum / y
    });
    let add: StateClosure<u64, (u64, u64), u64> = there_and_back(&add).unwrap();
    let (lent, half) = add.call((BorrowedState::new(Box::new(4)), (5, 2)));
    let (lent, none) = add.call((lent, (1, 0)));
    assert_eq!((half, none, lent.into_inner()), (7, 0, Some(Box::new(16))));
    let names: StateClosure<Vec<String>, (), usize> = closure!([] |names: &mut Vec<String>| names.len());
    assert_eq!(names.call((BorrowedState::new(Box::default()), ())).1, 0);
    let one: StateClosure<Vec<String>, String, usize> = closure!([] |names: &mut Vec<String>, name: String| {
        names.push(name);
        names.len()
    });
    assert_eq!(one.call((BorrowedState::new(Box::default()), "a".into())).1, 1);
}

#[test]
fn code_sent_once_rebuilds_closures_from_captures() {
    let added = |by: u32| closure!([by] |x: u32| x + by);
    let bytes = rmp_serde::to_vec(&added(0).code()).unwrap();
    let code: Code<u32, u32> = rmp_serde::from_slice(&bytes).unwrap();
    assert_eq!(code.id(), added(1).code().id());
    assert!(!added(0).captures().unwrap().is_empty());
    assert!(closure!([] |x: u32| x).captures().unwrap().is_empty(), "no captures, so no bytes");
    let two = added(2).captures().unwrap();
    assert_eq!(code.capturing(&two).unwrap().call(40), 42);
    assert!(rmp_serde::from_slice::<Code<u8, u8>>(&bytes).is_err(), "other types");
}

#[test]
fn closure_captures_more_values_than_a_tuple() {
    let x = 1u8;
    let all = closure!(
        [
            a = x,
            b = x,
            c = x,
            d = x,
            e = x,
            f = x,
            g = x,
            h = x,
            i = x,
            j = x,
            k = x,
            l = x,
            m = x,
            n = x,
            o = x,
            p = x,
            q = x,
            r = x
        ] || a + b + c + d + e + f + g + h + i + j + k + l + m + n + o + p + q + r
    );
    assert_eq!(there_and_back(&all).unwrap().call(()), 18);
}

#[test]
fn functions_sent_as_closures_round_trip() {
    fn triple(x: u8) -> u8 {
        3 * x
    }
    assert_eq!(there_and_back(&Closure::new(triple)).unwrap().call(2), 6);
    let twins = [Closure::new(|x: u8| x + 1), Closure::new(|x: u8| x + 2)];
    assert_eq!(twins.each_ref().map(|twin| there_and_back(twin).unwrap().call(1)), [2, 3]);
}

#[test]
fn closure_of_another_type_is_refused() {
    let bytes = rmp_serde::to_vec(&closure!([] |x: u8| x)).unwrap();
    let error = rmp_serde::from_slice::<Closure<u16, u16>>(&bytes).unwrap_err().to_string();
    assert!(
        error.contains("can't be used here: the reference points to a function with other types"),
        "{error}"
    );
}

#[test]
fn tampered_code_reference_is_refused() {
    let one = 1_u8;
    let closure = closure!([one] |x: u8| x + one);
    let code = closure.0.code().reference().unwrap();
    let moved = |by| {
        let bytes = rmp_serde::to_vec(&(code.moved(by), ByteString(Vec::new()))).unwrap();
        rmp_serde::from_slice::<Closure<u8, u8>>(&bytes).map(drop).unwrap_err().to_string()
    };
    assert!(moved(1).contains("not aligned"), "{}", moved(1));
    assert!(moved(usize::MAX / 2 + 1).contains("outside of the program"));
    // The reference is valid. Reading fails later, because the captures are missing.
    assert!(!moved(0).contains("can't be used here"), "{}", moved(0));
}
