//! Tuples, vectors and options of messages that are not serde types.

use mp_core::Result;
use mp_core::message::{Codec, Incoming, Level, Message, Outgoing, PlainOutcome, UnsentValues, in_field};

/// Message that is a tuple, a `Vec` or an `Option` of messages, such as exclusive tensors.
///
/// (Coherence requires the wrapper, because these types are also serde types.)
///
/// ```
/// use mp_tensor::Tensor;
/// use mp_reduce::{Bundle, pack, unpack};
///
/// let t = Tensor::<f32>::zeros(&[10])?;
/// let envelope = pack(Bundle((t, "ten zeros".to_string()))).map_err(|e| e.error)?;
/// let Bundle((mut t, name)) = unpack::<Bundle<(Tensor<f32>, String)>>(envelope)?;
/// t.as_mut_slice()?[0] = 1.0;
/// assert_eq!(name, "ten zeros");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Bundle<T>(pub T);

macro_rules! tuples {
    ($(($($name:ident $i:tt),+))*) => {$(
        impl<$($name: Message),+> Message for Bundle<($($name,)+)> {
            fn encode<Co: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        let _level = Level::enter()?;
                $(self.0.$i.encode::<Co>(out)?;)+
                Ok(())
            }

            fn take_back(&mut self, back: &mut UnsentValues) {
        // Parts below the nesting limit were not written.
        let Ok(_level) = Level::enter() else { return };
                $(self.0.$i.take_back(back);)+
            }

            fn decode<Co: Codec>(inc: &mut Incoming) -> Result<Self> {
        let _level = Level::enter()?;
                Ok(Self(($(
                    $name::decode::<Co>(inc).map_err(|e| in_field::<Self>(e, stringify!($i)))?,
                )+)))
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

impl<T> PlainOutcome for Bundle<T> {}

impl<T: Message> Message for Bundle<Vec<T>> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        let _level = Level::enter()?;
        C::write(out, &(self.0.len() as u64))?;
        self.0.iter_mut().try_for_each(|v| v.encode::<C>(out))
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        // Parts below the nesting limit were not written.
        let Ok(_level) = Level::enter() else { return };
        self.0.iter_mut().for_each(|v| v.take_back(back));
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        let _level = Level::enter()?;
        let n: u64 = C::read(inc)?;
        // Not preallocated, because the number is untrusted.
        let mut all = Vec::new();
        for i in 0..n {
            all.push(T::decode::<C>(inc).map_err(|e| in_field::<Self>(e, &format!("[{i}]")))?);
        }
        Ok(Self(all))
    }
}

impl<T: Message> Message for Bundle<Option<T>> {
    fn encode<C: Codec>(&mut self, out: &mut Outgoing) -> Result<()> {
        let _level = Level::enter()?;
        C::write(out, &self.0.is_some())?;
        self.0.iter_mut().try_for_each(|v| v.encode::<C>(out))
    }

    fn take_back(&mut self, back: &mut UnsentValues) {
        // Parts below the nesting limit were not written.
        let Ok(_level) = Level::enter() else { return };
        self.0.iter_mut().for_each(|v| v.take_back(back));
    }

    fn decode<C: Codec>(inc: &mut Incoming) -> Result<Self> {
        let _level = Level::enter()?;
        let some: bool = C::read(inc)?;
        Ok(Self(if some { Some(T::decode::<C>(inc)?) } else { None }))
    }
}
