//! Registered methods that the server finds by name, so that captures of their closures stay in the server.
//!
//! When a caller sends the name of a method, the thread of the object looks the method up and runs it. So
//! user code that encodes, decodes or copies captures delays only this object, and never the network's
//! thread.

use mp_core::message::{Message, Outgoing};
use mp_reduce::MessagePack;
use mp_spawn::Closure;
use serde::{Deserialize, Serialize};

use crate::answer::{AnswerStatus, MessageBody};
use crate::error::CallError;
use crate::object::ObjectCall;
use crate::remote::methods::{MethodSignature, RegisteredType};
use crate::remote::registry::NameRegistry;
use crate::remote::wire::Framed;

/// Names of a type and its methods.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct TypeSignature {
    pub(super) name: String,
    pub(super) methods: Vec<MethodSignature>,
}

impl TypeSignature {
    pub(super) fn of(registered: &RegisteredType) -> Self {
        let methods = registered.methods.iter().map(|method| method.signature.clone()).collect();
        TypeSignature { name: registered.name.clone(), methods }
    }
}

/// Type of a returned object, or the reason why the method was not called. A proxy of the object follows.
pub(super) type ReturnedSignature = Result<TypeSignature, CallError>;

/// Returns a closure that finds a method in the server. The result of a method that returns an object begins
/// with a [`ReturnedSignature`].
pub(super) fn named_method(type_name: &str, method: &str) -> Closure<(), ObjectCall> {
    type Names = (String, (String, ()));
    let names: Names = (type_name.to_owned(), (method.to_owned(), ()));
    Closure::from_parts(names, |(type_name, (method, ())): &Names, (): ()| {
        find(type_name, method)
            .unwrap_or_else(|why| ObjectCall::new(move |_, _| Err(AnswerStatus::Unreadable(why.clone()))))
    })
}

fn find(type_name: &str, method: &str) -> Result<ObjectCall, String> {
    let registry = NameRegistry::of_server().map_err(|error| error.to_string())?;
    let registered = registry.registered(type_name).map_err(|error| error.to_string())?;
    let found = registered.methods.iter().find(|found| found.signature.name == method);
    let found = found.ok_or_else(|| format!("`{type_name}` has no method `{method}`"))?;
    let task = found.task.call(());
    let Some(returned) = found.signature.object.clone() else { return Ok(task) };
    Ok(ObjectCall::new(move |object, body| match registry.registered(&returned.name) {
        Ok(registered) => framed(Ok(TypeSignature::of(&registered)), task.run(object, body)?),
        Err(error) => framed(Err(error), MessageBody::Out(Box::default())),
    }))
}

fn framed(head: ReturnedSignature, body: MessageBody) -> Result<MessageBody, AnswerStatus> {
    let mut out = Box::<Outgoing>::default();
    let written = Framed { head, body }.encode::<MessagePack>(&mut out);
    written.map_err(|error| AnswerStatus::Unsendable(error.to_string()))?;
    Ok(MessageBody::Out(out))
}
