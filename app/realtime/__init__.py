"""What /v1/realtime is made of beside its socket: sound that comes in, the conversation, responses as they are told."""
