"""HTTP routes: thin handlers, one file an API area.

An application is assembled from `handlers`, `exception_handlers` and `app.routes.docs.openapi_config()`, with
`request_max_body_size` set to the limit of the settings; its ASGI entry runs every HTTP request through
`app.routes.trace.traced`. Handlers read `app.state`, which app.routes.state describes.
"""

from __future__ import annotations

from litestar import Router

from app.routes import (
    adapters,
    chat,
    cluster,
    completions,
    docs,
    files,
    health,
    images,
    invocations,
    listening,
    messages,
    metrics,
    models,
    pooling,
    realtime,
    responses,
    robot,
    sleep,
    sounds,
    speech,
    speechbatch,
    speechsocket,
    tokens,
    version,
    videos,
    voices,
)
from app.routes.auth import require_key
from app.routes.errors import exception_handlers

handlers = [
    Router(
        "/",
        guards=[require_key],
        route_handlers=[
            health.livez,
            health.readyz,
            health.ping,
            version.version,
            docs.openapi_json,
            metrics.get_metrics,
            models.list_models,
            models.retrieve_model,
            chat.create_chat_completion,
            completions.create_completion,
            responses.create_response,
            responses.retrieve_response,
            responses.cancel_response,
            sleep.sleep_stages,
            sleep.wake_stages,
            sleep.sleep_all,
            sleep.wake_all,
            sleep.is_sleeping,
            messages.create_message,
            messages.count_tokens,
            messages.create_chat_batch,
            images.create_image,
            images.create_image_edit,
            images.create_image_variation,
            speech.create_speech,
            speechbatch.create_speech_batch,
            speechsocket.stream_speech,
            realtime.converse,
            robot.act,
            sounds.generate_audio,
            voices.create_voice,
            voices.list_voices,
            voices.retrieve_voice,
            voices.delete_voice,
            files.get_generated_file,
            videos.create_video,
            videos.make_video,
            videos.list_videos,
            videos.retrieve_video,
            videos.delete_video,
            videos.get_content,
            listening.create_transcription,
            listening.create_translation,
            tokens.tokenize,
            tokens.detokenize,
            tokens.generative_scoring,
            pooling.create_embedding,
            pooling.create_cohere_embedding,
            pooling.pool,
            pooling.classify,
            pooling.score,
            pooling.rerank,
            invocations.invoke,
            invocations.server_load,
            adapters.load_lora_adapter,
            adapters.unload_lora_adapter,
            cluster.get_status,
            cluster.scale_stage,
        ],
    )
]

__all__ = ["exception_handlers", "handlers"]
