"""Private parts of torch: operators over lists of tensors, which its own optimizers and its GradScaler call."""

import torch

add_ = torch._foreach_add_
addcmul_ = torch._foreach_addcmul_
clamp_max_ = torch._foreach_clamp_max_
clamp_min = torch._foreach_clamp_min
clamp_min_ = torch._foreach_clamp_min_
copy_ = torch._foreach_copy_
div_ = torch._foreach_div_
mul_ = torch._foreach_mul_
pow = torch._foreach_pow
sqrt = torch._foreach_sqrt
sub_ = torch._foreach_sub_
unscale_ = torch._amp_foreach_non_finite_check_and_unscale_
update_scale_ = torch._amp_update_scale_
