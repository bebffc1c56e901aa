"""Asks an endpoint as OpenAI's, Anthropic's and LiteLLM's own packages do."""

import sys

import anthropic
import litellm
import openai

base, model = sys.argv[1:3]
client = openai.OpenAI(base_url=base + "/v1", api_key="tml-x", max_retries=0)
talk = [{"role": "user", "content": "spell cat"}]


def refused(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind}")


assert model in [one.id for one in client.models.list()]
assert client.models.retrieve(model).id == model
error = refused(openai.NotFoundError, lambda: client.models.retrieve("no/such"))
assert "no/such" in error.message, error

asked = dict(model=model, prompt="copy: tree ->", max_tokens=8, temperature=0, logprobs=2)
whole = client.completions.create(**asked)
choice = whole.choices[0]
assert whole.usage.completion_tokens == len(choice.logprobs.tokens) <= 8, whole
assert all(len(top) >= 2 for top in choice.logprobs.top_logprobs), choice
pieces = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
assert "".join(c.text for p in pieces for c in p.choices) == choice.text
assert pieces[-1].usage == whole.usage, pieces[-1]
echo = client.completions.create(model=model, prompt="copy", max_tokens=0, echo=True, logprobs=1)
assert echo.choices[0].text == "copy" and len(echo.choices[0].logprobs.token_logprobs) == 4, echo
both = client.completions.create(model=model, prompt=["a", "b"], max_tokens=2, n=2)
assert sorted(c.index for c in both.choices) == [0, 1, 2, 3]

asked = dict(model=model, messages=talk, max_tokens=8, temperature=0, logprobs=True, top_logprobs=2)
whole = client.chat.completions.create(**asked)
message = whole.choices[0].message
assert message.role == "assistant" and whole.choices[0].finish_reason in ("stop", "length"), whole
assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
pieces = list(client.chat.completions.create(**asked, stream=True))
assert pieces[0].choices[0].delta.role == "assistant" and not pieces[0].choices[0].delta.content
assert "".join(p.choices[0].delta.content or "" for p in pieces) == message.content
assert pieces[-1].choices[0].finish_reason == whole.choices[0].finish_reason
stopped = client.chat.completions.create(model=model, messages=talk, temperature=0, max_tokens=8,
                                         stop=[message.content[1]])
assert stopped.choices[0].message.content == message.content[0], stopped
assert stopped.choices[0].finish_reason == "stop"
error = refused(openai.BadRequestError, lambda: client.chat.completions.create(
    model=model, messages=talk, response_format={"type": "json_object"}))
assert error.param == "response_format" and error.code == "unsupported_parameter", error.body
# A server behind another decides by itself which of the two it is.
unknown = (openai.NotFoundError, openai.BadRequestError)
refused(unknown, lambda: client.chat.completions.create(model="no/such", messages=talk))

theirs = anthropic.Anthropic(base_url=base, api_key="tml-x", max_retries=0)
asked = dict(model=model, max_tokens=8, extra_body={"temperature": 0},
             messages=[{"role": "user", "content": [{"type": "text", "text": "spell cat"}]}])
answer = theirs.messages.create(**asked)
assert answer.content[0].text == message.content and answer.usage.input_tokens > 0, answer
assert answer.stop_reason in ("end_turn", "max_tokens"), answer
with theirs.messages.stream(**asked) as stream:
    assert "".join(stream.text_stream) == message.content
    assert stream.get_final_message().stop_reason == answer.stop_reason
stopped = theirs.messages.create(**asked, stop_sequences=[message.content[1]])
assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", message.content[1]), stopped
told = theirs.messages.create(**asked, system=[{"type": "text", "text": "Be brief."}])
assert told.usage.input_tokens > answer.usage.input_tokens, told
unknown = (anthropic.NotFoundError, anthropic.BadRequestError)
refused(unknown, lambda: theirs.messages.create(**{**asked, "model": "no/such"}))
refused(anthropic.BadRequestError, lambda: theirs.messages.create(
    **asked, tool_choice={"type": "any"}, tools=[]))

asked = dict(model="openai/" + model, api_base=base + "/v1", api_key="tml-x", messages=talk,
             max_tokens=8, temperature=0)
assert litellm.completion(**asked).choices[0].message.content == message.content
pieces = list(litellm.completion(**asked, stream=True))
assert "".join(p.choices[0].delta.content or "" for p in pieces) == message.content
asked = {**asked, "model": "anthropic/" + model, "api_base": base}
assert litellm.completion(**asked).choices[0].message.content == message.content
print("all is well")
