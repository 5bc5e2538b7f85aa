"""Every Hugging Face architecture that the installed transformers knows, tiny, seeded and offline.

from models.zoo import architectures, catalogue, recipe

for architecture in architectures.architectures().values():
    tiny = catalogue.recipe(architecture.model_type, architecture.main_task)
    model = recipe.build(tiny)
    outputs = model(**recipe.inputs(tiny, batch=2, length=16, seed=0))
"""
