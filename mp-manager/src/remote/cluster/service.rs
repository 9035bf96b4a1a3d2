//! Service of the member that published an object.

use std::pin::pin;
use std::sync::Arc;

use mp_core::message::Incoming;
use mp_core::mutex::Mutex;
use mp_net::service::{NetService, Replying, output_within};
use mp_queue::{GetError, Sender};

use crate::answer::{CallAnswer, MessageBody};
use crate::caller::{CHECK_INTERVAL, Caller, send};
use crate::error::{CallError, CallName};
use crate::proxy::{ObjectLink, answer_error};
use crate::remote::cluster::messages::{ClusterAsk, ClusterReply};
use crate::remote::connection::{method_request, plain_result};
use crate::remote::methods::RegisteredType;
use crate::remote::wire::Framed;
use crate::request::ObjectRequest;

/// An object for other members.
pub(crate) struct ObjectService {
    /// Keeps the object alive.
    requests: Sender<ObjectRequest>,
    server: u32,
    registered: RegisteredType,
    idle: Mutex<Vec<Caller>>,
}

impl ObjectService {
    pub(crate) fn new(link: &ObjectLink, registered: RegisteredType) -> Self {
        ObjectService {
            requests: link.requests.clone(),
            server: link.server,
            registered,
            idle: Mutex::default(),
        }
    }

    /// Calls a method. Dropping the future drops the answer.
    async fn call(&self, method: String, args: Incoming) -> Result<MessageBody, CallError> {
        let call = CallName::at_caller(method, self.registered.name.clone());
        let Some(method) = self.registered.methods.iter().find(|method| method.name == call.closure) else {
            return Err(CallError::NoSuchMethod { call, known: self.registered.method_names() });
        };
        if method.object.is_some() {
            let why = "the method returns an object, which other members of a cluster can't have";
            return Err(CallError::Value { why: why.into(), undecodable: None });
        }
        let args = args.into_outgoing().filter(|args| args.plain().is_some());
        let attached =
            || mp_core::Error::Malformed("arguments with attachments came from another host".into());
        let body = MessageBody::Out(Box::new(args.ok_or_else(attached)?));
        let idle = self.idle.lock().pop();
        let mut caller = match idle {
            Some(caller) => caller,
            None => Caller::new(&self.requests, self.server)?,
        };
        let request = method_request(method, &mut caller, &self.requests, self.server, body)?;
        send(&self.requests, request, self.server)?;
        // Without an answer, the caller is dropped, so that a late answer is not mistaken for another one.
        let answer = self.answer(&caller).await?;
        self.idle.lock().push(caller);
        match answer {
            CallAnswer(Ok(value)) => plain_result(value),
            other => Err(answer_error(other, self.server, call)),
        }
    }

    async fn answer(&self, caller: &Caller) -> Result<CallAnswer, CallError> {
        let mut answer = pin!(caller.answers().recv_async());
        let gone = CallError::ServerGone { server: self.server };
        loop {
            match output_within(CHECK_INTERVAL, answer.as_mut()).await {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(GetError::Failed(error))) => return Err(error.into()),
                Some(Err(_)) => return Err(gone),
                // As in `proxy::answer`: the sender of answers may still be in the object's channel.
                None if self.requests.is_disconnected() => {
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
        Box::pin(async move {
            match request.head {
                ClusterAsk::Describe => {
                    let (type_name, server) = (self.registered.name.clone(), self.server);
                    Framed::bare(ClusterReply::Described { type_name, server })
                }
                ClusterAsk::Call { method } => match self.call(method, request.body.into_incoming()).await {
                    Ok(body) => Framed { head: ClusterReply::Done, body },
                    Err(error) => Framed::bare(ClusterReply::Failed(error)),
                },
            }
        })
    }
}
