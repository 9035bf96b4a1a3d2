//! Service of the member that published an object.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};

use mp_core::message::{Incoming, Message};
use mp_core::mutex::Mutex;
use mp_net::service::{HeldReplying, HeldValue, NetService, Replying, output_within};
use mp_queue::{GetError, Sender};
use mp_reduce::MessagePack;

use crate::answer::{AnswerStatus, CallAnswer, MessageBody};
use crate::caller::{CHECK_INTERVAL, Caller, send};
use crate::error::{CallError, CallName};
use crate::proxy::{ObjectLink, answer_error};
use crate::remote::cluster::messages::{ClusterAsk, ClusterReply};
use crate::remote::cluster::named::{ReturnedSignature, TypeSignature, named_method};
use crate::remote::connection::{method_request, plain_result};
use crate::remote::methods::{find_method, returned_object};
use crate::remote::wire::Framed;
use crate::request::ObjectRequest;

/// Object that other members call.
struct ClusterObject {
    /// Keeps the object alive.
    requests: Sender<ObjectRequest>,
    /// Number of the object in the server.
    object: u64,
    signature: TypeSignature,
    idle: Mutex<Vec<Caller>>,
}

impl ClusterObject {
    fn new(link: &ObjectLink, signature: TypeSignature) -> Arc<Self> {
        let (requests, object) = (link.requests.clone(), link.object);
        Arc::new(ClusterObject { requests, object, signature, idle: Mutex::default() })
    }
}

/// Handles that callers have, by number.
#[derive(Default)]
struct CallerHandles {
    objects: BTreeMap<u64, Arc<ClusterObject>>,
    /// Number of the last handle.
    last: u64,
}

/// A published object, and the objects that its methods have returned to other members.
pub(crate) struct ObjectService {
    server: u32,
    /// Random offset that is added to the numbers of objects, so that objects of different servers have
    /// different numbers.
    offset: u64,
    published: Arc<ClusterObject>,
    handles: Mutex<CallerHandles>,
}

/// Handle of a caller. Dropping this value releases the handle.
struct CallerHandle {
    service: Weak<ObjectService>,
    number: u64,
}

impl Drop for CallerHandle {
    fn drop(&mut self) {
        let service = self.service.upgrade();
        let released = service.and_then(|service| service.handles.lock().objects.remove(&self.number));
        // Dropped after the lock is released, because the drop may free the object.
        drop(released);
    }
}

/// Reply, and the handle that the caller holds from then on, if any.
type ServedReply = (Framed<ClusterReply>, Option<HeldValue>);

impl ObjectService {
    pub(crate) fn new(link: &ObjectLink, signature: TypeSignature, offset: u64) -> Self {
        let published = ClusterObject::new(link, signature);
        ObjectService { server: link.server, offset, published, handles: Mutex::default() }
    }

    /// Returns the object of a handle, or the published object if `handle` is `None`. Also returns the name
    /// of a call of the method `name` of this object.
    fn find(&self, handle: Option<u64>, name: String) -> Result<(Arc<ClusterObject>, CallName), CallError> {
        let found = match handle {
            None => Some(self.published.clone()),
            Some(number) => self.handles.lock().objects.get(&number).cloned(),
        };
        match found {
            Some(object) => {
                let call = CallName::at_caller(name, object.signature.name.clone());
                Ok((object, call))
            }
            None => Err(CallError::Freed { call: CallName::at_caller(name, "a returned object") }),
        }
    }

    /// Returns the number by which callers identify an object.
    fn number(&self, object: &ClusterObject) -> u64 {
        self.offset.wrapping_add(object.object)
    }

    /// Creates a handle.
    fn share(self: &Arc<Self>, object: Arc<ClusterObject>) -> ServedReply {
        let (type_name, of) = (object.signature.name.clone(), self.number(&object));
        let mut handles = self.handles.lock();
        handles.last += 1;
        let number = handles.last;
        handles.objects.insert(number, object);
        drop(handles);
        let held = CallerHandle { service: Arc::downgrade(self), number };
        let reply = ClusterReply::Object { handle: number, type_name, object: of };
        (Framed::bare(reply), Some(Box::new(held)))
    }

    /// Calls a method. Dropping the future drops the answer.
    async fn call(
        self: &Arc<Self>,
        (handle, method, returns_object): (Option<u64>, String, bool),
        args: Incoming,
    ) -> Result<ServedReply, CallError> {
        let (object, call) = self.find(handle, method)?;
        let ClusterObject { requests, signature, .. } = &*object;
        let method = find_method(&signature.methods, &call, returns_object)?;
        let args = args.into_outgoing().filter(|args| args.plain().is_some());
        let attached =
            || mp_core::Error::Malformed("arguments with attachments came from another host".into());
        let body = MessageBody::Out(Box::new(args.ok_or_else(attached)?));
        let answer = self.request(&object, |caller| {
            let id = std::ptr::from_ref(method).addr();
            let task = || named_method(&signature.name, &method.name);
            method_request((id, task), caller, requests, self.server, body)
        });
        let value = match answer.await? {
            CallAnswer(Ok(value)) => value,
            other => return Err(answer_error(other, self.server, call)),
        };
        if !returns_object {
            return Ok((Framed { head: ClusterReply::Done, body: plain_result(value)? }, None));
        }
        let Framed { head, body } =
            Framed::<ReturnedSignature>::decode::<MessagePack>(&mut value.into_incoming())?;
        let (signature, link) = (head?, returned_object(body, self.server)?);
        Ok(self.share(ClusterObject::new(&link, signature)))
    }

    async fn free(&self, handle: Option<u64>) -> Result<ServedReply, CallError> {
        let (object, call) = self.find(handle, "ClusterProxy::free".into())?;
        let free = |caller: &mut Caller| Ok(ObjectRequest::Free { caller: caller.number() });
        match self.request(&object, free).await? {
            CallAnswer(Err(AnswerStatus::Freed)) => Ok((Framed::bare(ClusterReply::Freed), None)),
            other => Err(answer_error(other, self.server, call)),
        }
    }

    /// Sends a request at once, and returns the future answer.
    async fn request(
        &self,
        object: &ClusterObject,
        request: impl FnOnce(&mut Caller) -> Result<ObjectRequest, CallError>,
    ) -> Result<CallAnswer, CallError> {
        let idle = object.idle.lock().pop();
        let mut caller = match idle {
            Some(caller) => caller,
            None => Caller::new(&object.requests, self.server)?,
        };
        let request = request(&mut caller)?;
        send(&object.requests, request, self.server)?;
        // Without an answer, `caller` is dropped, so that a late answer is not mistaken for the answer to
        // another call.
        let answer = self.answer(object, &caller).await?;
        object.idle.lock().push(caller);
        Ok(answer)
    }

    async fn answer(&self, object: &ClusterObject, caller: &Caller) -> Result<CallAnswer, CallError> {
        let mut answer = pin!(caller.answers().recv_async());
        let gone = CallError::ServerGone { server: self.server };
        loop {
            match output_within(CHECK_INTERVAL, answer.as_mut()).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(GetError::Failed(error))) => return Err(error.into()),
                Some(Err(_)) => return Err(gone),
                // As in `proxy::answer`: the sender of answers may still be in the object's channel.
                None if object.requests.is_disconnected() => {
                    return caller.answers().try_recv().map_err(|_| gone);
                }
                None => {}
            }
        }
    }
}

impl NetService for ObjectService {
    type Request = Framed<ClusterAsk>;
    type Reply = Framed<ClusterReply>;

    fn serve(self: Arc<Self>, request: Framed<ClusterAsk>) -> Replying<Framed<ClusterReply>> {
        let reply = self.serve_held(request);
        Box::pin(async move { reply.await.0 })
    }

    fn serve_held(self: Arc<Self>, request: Framed<ClusterAsk>) -> HeldReplying<Framed<ClusterReply>> {
        Box::pin(async move {
            let served = match request.head {
                ClusterAsk::Describe => {
                    let (type_name, object) =
                        (self.published.signature.name.clone(), self.number(&self.published));
                    let described = ClusterReply::Described { type_name, server: self.server, object };
                    Ok((Framed::bare(described), None))
                }
                ClusterAsk::Call { handle, method, returns_object } => {
                    self.call((handle, method, returns_object), request.body.into_incoming()).await
                }
                ClusterAsk::Share { handle } => {
                    let found = self.find(Some(handle), "a share of it".into());
                    found.map(|(object, _)| self.share(object))
                }
                ClusterAsk::Free { handle } => self.free(handle).await,
            };
            served.unwrap_or_else(|error| (Framed::bare(ClusterReply::Failed(error)), None))
        })
    }
}
