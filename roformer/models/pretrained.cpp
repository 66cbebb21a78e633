#include "roformer/models/pretrained.h"

namespace roformer {

PretrainedImpl::PretrainedImpl(const PretrainedOptions& options, PositionEncoding encoding)
    : encoder(register_module("encoder", Encoder(options.encoder, encoding))), options_(options) {
  if (options.pooler) {
    pooler = register_module("pooler", torch::nn::Linear(options.encoder.dim, options.encoder.dim));
    initialise(*pooler, options.encoder.init_std);
  }
  if (options.head == HeadType::mlm) {
    mlm = register_module("head", MlmHead(options.encoder, options.tied));
  } else if (options.head == HeadType::classifier) {
    classifier = register_module("head", ClassifierHead(options.encoder, options.classifier));
  }
}

PretrainedImpl::Output PretrainedImpl::forward(const torch::Tensor& tokens, const torch::Tensor& keep,
                                               const torch::Tensor& segments) {
  Output out;
  out.last_hidden_state = encoder(tokens, keep, segments);
  if (pooler) out.pooler_output = at::tanh(pooler(out.last_hidden_state.select(1, 0)));
  if (mlm) out.logits = mlm(out.last_hidden_state, encoder->token_weight());
  if (classifier) out.logits = classifier(out.last_hidden_state);
  return out;
}

}  // namespace roformer
